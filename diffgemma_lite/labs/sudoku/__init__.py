"""Puzzles as a canvas: every cell is a position, the given ones are pinned.

Walked through in notebook 09.

task      a puzzle as tokens, in four layouts
batches   the plan of a training run and its batches, each a function of (seed, step)
train     three siblings, uniform, masked and autoregressive, trained alike
evaluate  puzzles solved and counted, with intervals
runs      what a finished run left
card      a trained model's card
siblings  the three siblings, and the layouts, beside each other
finetune  a model trained on text learns puzzles, with all its weights or with LoRA
"""
