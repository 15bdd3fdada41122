"""Experiments: one folder each, of one shape (data, train, evaluate, card); what they share stands
beside the folders.
"""
