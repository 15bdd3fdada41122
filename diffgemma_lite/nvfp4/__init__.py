"""What four bits do to a weight: NVFP4 exactly as the hardware formats define it.

This file only collects the names.

codes       the sixteen codes, rounding, two codes in a byte
tensor      blocks of 16, E4M3 block scales, the float32 tensor scale: quantize, dequantize,
            NVFP4Tensor
formats     what to compare with: MXFP4, INT4 in groups, FP8; the signal-to-noise ratio
layers      linear layer, experts and embedding that hold packed weights
native      the same tensors on a GPU that multiplies them
memory      sizes of checkpoints by arithmetic
model       a model converted part by part; calibration
checkpoint  both public layouts, written and read (assemble: from tensors to layers)

Walked through in notebook 10.
"""

from __future__ import annotations

from ..parts import PARTS
from .checkpoint import load_quantized, save_quantized
from .formats import FORMATS, round_trip, snr_db
from .layers import NVFP4Embedding, NVFP4Experts, NVFP4Linear
from .model import calibrate, quantize_model, round_model, stored_bytes
from .tensor import NVFP4Tensor, dequantize, quantize

__all__ = [
    "FORMATS",
    "PARTS",
    "NVFP4Embedding",
    "NVFP4Experts",
    "NVFP4Linear",
    "NVFP4Tensor",
    "calibrate",
    "dequantize",
    "load_quantized",
    "quantize",
    "quantize_model",
    "round_model",
    "round_trip",
    "save_quantized",
    "snr_db",
    "stored_bytes",
]
