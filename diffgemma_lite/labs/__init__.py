"""Experiments: one folder each, of one shape (data, train, evaluate, card); what they share stands
beside the folders. `table.py` says which lab a recipe belongs to; a new lab adds a line to it.

    python -m diffgemma_lite.labs train|evaluate|card NAME
"""
