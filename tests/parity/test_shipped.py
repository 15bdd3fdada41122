"""The shipped text models in Transformers.

The same logits to the last bit, the same tokens, and the same ids from the tokenizer.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, DiffusionGemmaForBlockDiffusion

from diffgemma_lite import DiffusionGemma, SamplerConfig, generate
from diffgemma_lite.tokenizer import Tokenizer, encode_prompt

CHECKPOINTS = Path(__file__).parents[2] / "assets" / "checkpoints"
ASKED = {
    "python": ("body", 'def load(path):\n    """Read the file and return its lines."""'),
    "templates": ("record", "sum:3;a+2;b-1"),
}  # fmt: skip
FOLDERS = sorted(
    f.parent
    for f in CHECKPOINTS.glob("*/model.safetensors")
    if (f.parent / "tokenizer.json").exists()
)


def test_the_text_models_are_found():
    assert {"python-small", "templates-small"} <= {folder.name for folder in FOLDERS}


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def shipped(request):
    """(folder, our model, theirs, ids of a prompt)."""
    ours = DiffusionGemma.from_pretrained(request.param, dtype=torch.float32).set_kernels(
        experts="loop"
    )
    theirs = DiffusionGemmaForBlockDiffusion.from_pretrained(
        request.param, dtype=torch.float32
    ).eval()
    theirs.set_experts_implementation("eager")
    ids = encode_prompt(Tokenizer.load(request.param), *ASKED[request.param.name.split("-")[0]], 48)
    return request.param, ours, theirs, torch.tensor([ids])


@torch.no_grad()
def test_logits_are_equal(shipped):
    _, ours, theirs, ids = shipped
    canvas = torch.randint(
        0,
        ours.config.vocab_size,
        (1, ours.config.canvas_length),
        generator=torch.Generator().manual_seed(0),
    )
    belief = ours.decode(canvas, ours.encode(ids))
    assert torch.equal(belief, theirs(input_ids=ids, decoder_input_ids=canvas).logits)
    again = theirs(input_ids=ids, decoder_input_ids=canvas, self_conditioning_logits=belief).logits
    assert torch.equal(ours.decode(canvas, ours.encode(ids), belief), again)


def test_tokens_are_equal_under_the_shipped_settings(shipped):
    """generation_config.json drives both; eight steps of it."""
    _, ours, theirs, ids = shipped
    torch.manual_seed(3)
    want = theirs.generate(ids, max_denoising_steps=8).sequences[:, ids.shape[1] :]
    torch.manual_seed(3)
    sampler, length = (
        SamplerConfig.from_defaults(ours.generation_defaults, max_denoising_steps=8),
        ours.config.canvas_length,
    )
    got = generate(
        ours,
        ids,
        sampler,
        max_new_tokens=length,
        eos_token_id=ours.generation_defaults["eos_token_id"],
        pad_token_id=0,
    )
    assert (
        torch.equal(got.tokens, want[:, : got.tokens.shape[1]])
        and not want[:, got.tokens.shape[1] :].any()
    )


def test_tokenizer_gives_the_same_ids(shipped):
    folder, *_ = shipped
    _, prompt = ASKED[folder.name.split("-")[0]]
    assert AutoTokenizer.from_pretrained(folder)(prompt, add_special_tokens=False)[
        "input_ids"
    ] == Tokenizer.load(folder).encode(prompt)


def test_size_is_one_copy_in_bfloat16(shipped):
    folder, ours, *_ = shipped
    size, numbers = (
        (folder / "model.safetensors").stat().st_size,
        sum(t.numel() for t in ours.state_dict().values()),
    )
    assert 2 * numbers < size < 2 * numbers + 100_000 < 30e6
