"""diffgemma_lite: DiffusionGemma from scratch, small enough to read, proved equal to the reference.

Read the files at the top in the order in which they import each other:

    config, layers, attention, moe, model   the network: one stack of blocks, run in two ways
    noise, sampler, generation, answer      a canvas: blurred, denoised step by step, committed
    loss, train, lora, checkpoint           learning, and keeping what was learnt

checks and inputs are the door (what arguments may be), hf_layout and parts are names, tokenizer
turns text into ids. The folders
are rooms of their own, each opened by what its __init__ says: nvfp4, cost, trace, measure, labs,
view, course. Arrows run one way, from the core to the course; the tests hold them.
"""

from .answer import Generation
from .config import Config
from .generation import denoise, generate, generate_autoregressive
from .model import DiffusionGemma
from .sampler import SamplerConfig
from .trace import Trace

__all__ = [
    "Config",
    "DiffusionGemma",
    "Generation",
    "SamplerConfig",
    "Trace",
    "denoise",
    "generate",
    "generate_autoregressive",
]
