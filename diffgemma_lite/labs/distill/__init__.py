"""Fewer steps: a model is taught by its own slow answers, those that a reward lets pass.

    python -m diffgemma_lite.labs train sudoku-few-steps    # stage by stage

DiffusionGemma owes its few steps to a second stage of training whose objective is not public
(sampler distillation with rewards, arXiv:2608.00146). This is not that objective. It is ours, kept
small, one round after the other:

    1  the teacher, which is the model itself, answers questions with many steps and mild annealing
    2  a reward looks at each answer (are the rules kept? is the record valid?); the right ones
       become targets
    3  the model is led to a state of a *few-step* run of its own: k < few_steps steps of the
       sampler, from fresh noise
    4  there it learns the target: cross-entropy at all positions that are not pinned, through
       the belief it came with

Of several right answers to one question the one is taken that the model found likeliest at first
sight, from pure noise: where many answers are right, a model that keeps all of them open needs a
step for each choice. What that costs is measured as well: `variety`, the share of different answers
among all right ones. What happens without step 2 is a run with `rewarded=False`.

data        what is asked and what is right: a Sudoku, a record, the body of a function
teacher     steps 1 and 2: answers, and the targets among them
student     steps 3 and 4
train       a recipe, stage by stage
evaluate    accuracy at a limit on the steps, variety, and every family of records
card        the words and the card, from the scores alone
"""

from __future__ import annotations

from .data import Questions, body_questions, record_questions, sudoku_questions, text_questions
from .evaluate import step_curve, variety
from .student import distill, state_of_few_steps
from .teacher import Answers, Distillation, answers, ask_teacher, targets

__all__ = [
    "Answers",
    "Distillation",
    "Questions",
    "answers",
    "ask_teacher",
    "body_questions",
    "distill",
    "record_questions",
    "state_of_few_steps",
    "step_curve",
    "sudoku_questions",
    "targets",
    "text_questions",
    "variety",
]
