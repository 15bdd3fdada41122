"""diffgemma_lite: DiffusionGemma from scratch, small enough to read and proved equal to the
reference.
"""

from .config import Config
from .generation import Generation, generate, generate_autoregressive
from .model import DiffusionGemma
from .sampler import SamplerConfig
from .trace import Trace

__all__ = [
    "Config",
    "DiffusionGemma",
    "Generation",
    "SamplerConfig",
    "Trace",
    "generate",
    "generate_autoregressive",
]
