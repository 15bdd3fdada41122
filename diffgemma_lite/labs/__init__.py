"""Experiments: one folder each, of one shape (data, train, evaluate, card).

What they share stands beside the folders.
"""
