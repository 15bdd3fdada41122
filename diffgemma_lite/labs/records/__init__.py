"""Records that constrain themselves, written and checked. Walked through in notebook 08.

scores   is a record valid, is it the one asked for, does its end agree with its beginning
planted  a wrong token planted in a record that is nearly written
evaluate what a model trained on records is worth
card     its card
"""
