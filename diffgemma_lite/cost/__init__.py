"""What the model weighs, what one step costs, and the least time a device can take for it.

Against a benchmark: everything here is arithmetic on the config and a data sheet, so it can be
wrong, and the tests and notebook 11 hold it against published measurements. `step_cost` (ops) lists
a step op by op, `floor` (hardware) turns the list into a time that no device of that data sheet can
beat, and `predict` (prediction) adds four numbers, each fitted on one published single-user figure,
and then says what other measurements should have been. Walked through in notebooks 01 and 11.
"""

from __future__ import annotations

from .hardware import floor
from .ops import OpCost, by_part, step_cost
from .parameters import PUBLISHED, active_parameters, parameters
from .prediction import (
    PRECISIONS,
    Calibration,
    Precision,
    Prediction,
    calibrate,
    crossover,
    predict,
)
from .routing import distinct_experts, fit_skew

__all__ = [
    "PRECISIONS",
    "PUBLISHED",
    "Calibration",
    "OpCost",
    "Precision",
    "Prediction",
    "active_parameters",
    "by_part",
    "calibrate",
    "crossover",
    "distinct_experts",
    "fit_skew",
    "floor",
    "parameters",
    "predict",
    "step_cost",
]
