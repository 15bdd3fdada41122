"""The shipped model in Transformers: the same logits to the last bit, the same tokens, and the same ids from its tokenizer."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, DiffusionGemmaForBlockDiffusion

from diffgemma_lite import DiffusionGemma, SamplerConfig, generate
from diffgemma_lite.data.tokenizer import Tokenizer, encode_prompt

FOLDER = Path(__file__).parents[2] / "assets" / "checkpoints" / "python-small"
PROMPT = 'def load(path):\n    """Read the file and return its lines."""'


@pytest.fixture(scope="module")
def pair():
    ours = DiffusionGemma.from_pretrained(FOLDER, dtype=torch.float32).set_kernels(experts="loop")
    theirs = DiffusionGemmaForBlockDiffusion.from_pretrained(FOLDER, dtype=torch.float32).eval()
    theirs.set_experts_implementation("eager")
    return ours, theirs


@torch.no_grad()
def test_logits_are_equal(pair):
    ours, theirs = pair
    ids = torch.tensor([encode_prompt(Tokenizer.load(FOLDER), "body", PROMPT, 48)])
    canvas = torch.randint(0, 2048, (1, 64), generator=torch.Generator().manual_seed(0))
    belief = ours.decode(canvas, ours.encode(ids))
    assert torch.equal(belief, theirs(input_ids=ids, decoder_input_ids=canvas).logits)
    again = theirs(input_ids=ids, decoder_input_ids=canvas, self_conditioning_logits=belief).logits
    assert torch.equal(ours.decode(canvas, ours.encode(ids), belief), again)


def test_tokens_are_equal_under_the_shipped_settings(pair):
    """generation_config.json drives both; eight steps of it."""
    ours, theirs = pair
    tokenizer = Tokenizer.load(FOLDER)
    ids = torch.tensor([encode_prompt(tokenizer, "body", PROMPT, 48)])
    torch.manual_seed(3)
    want = theirs.generate(ids, max_denoising_steps=8).sequences[:, ids.shape[1] :]
    torch.manual_seed(3)
    sampler = SamplerConfig.from_defaults(ours.generation_defaults, max_denoising_steps=8)
    got = generate(ours, ids, sampler, max_new_tokens=64, eos_token_id=ours.generation_defaults["eos_token_id"], pad_token_id=0)
    assert torch.equal(got.tokens, want[:, : got.tokens.shape[1]]) and not want[:, got.tokens.shape[1] :].any()


def test_tokenizer_gives_the_same_ids():
    assert AutoTokenizer.from_pretrained(FOLDER)(PROMPT, add_special_tokens=False)["input_ids"] == Tokenizer.load(FOLDER).encode(PROMPT)


def test_size_is_one_copy_in_bfloat16(pair):
    size = (FOLDER / "model.safetensors").stat().st_size
    numbers = sum(t.numel() for t in pair[0].state_dict().values())
    assert 2 * numbers < size < 2 * numbers + 100_000 < 30e6
