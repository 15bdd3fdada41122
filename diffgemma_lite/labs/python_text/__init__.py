"""Real Python source as text: the corpus, what a model of it is worth, and its card.

Walked through in notebook 06.
"""
