"""What four bits do to a weight: NVFP4 exactly as the hardware formats define it. This file only collects the names.

nvfp4_codes       the sixteen codes, rounding, two codes in a byte
nvfp4_tensor      blocks of 16, E4M3 block scales, the float32 tensor scale: quantize, dequantize, NVFP4Tensor
nvfp4_formats     what to compare with: MXFP4, INT4 in groups, FP8; the signal-to-noise ratio
Walked through in notebook 10.
"""

from __future__ import annotations

from .nvfp4_formats import FORMATS, round_trip, snr_db
from .nvfp4_tensor import NVFP4Tensor, dequantize, quantize

__all__ = ["FORMATS", "NVFP4Tensor", "dequantize", "quantize", "round_trip", "snr_db"]
