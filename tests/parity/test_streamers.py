"""The streamer protocol: Transformers' streamers work with our `generate`, and hear what the
reference would tell them.
"""

from __future__ import annotations

import pytest
import torch
from reference import FULL, SLIDING, left_padding, tokens
from torch import Tensor
from transformers import TextDiffusionStreamer, TextStreamer
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

from diffgemma_lite import SamplerConfig, generate

TWO_LAYERS = {"num_hidden_layers": 2, "layer_types": [SLIDING, FULL]}
SAMPLER = SamplerConfig(max_denoising_steps=4, entropy_bound=0.3, confidence_threshold=0.3)


class Words:
    """A tokenizer as small as a streamer needs."""

    def decode(self, ids, skip_special_tokens: bool = False) -> str:
        return "".join(f"w{int(i)} " for i in ids if not (skip_special_tokens and int(i) < 3))


class Ear:
    """Remembers every call."""

    def __init__(self, takes_logits: bool):
        self.heard: list[tuple[str, Tensor | None]] = []
        self._takes_logits = takes_logits

    def put(self, value: Tensor) -> None:
        self.heard.append(("put", value.clone()))

    def put_draft(self, value: Tensor | None = None, logits: Tensor | None = None) -> None:
        self.heard.append(("draft", (logits if value is None else value).clone()))

    def end(self) -> None:
        self.heard.append(("end", None))


@pytest.mark.parametrize("takes_logits", [False, True])
def test_a_streamer_hears_the_same_from_both(pair, takes_logits: bool) -> None:
    reference, model = pair(TWO_LAYERS)
    ids, mask = tokens((3, 20), model.config.vocab_size - 1), left_padding(20, [0, 4, 11])
    theirs, mine = Ear(takes_logits), Ear(takes_logits)
    torch.manual_seed(0)
    reference.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=16,
        max_denoising_steps=4,
        confidence_threshold=0.3,
        streamer=theirs,
        sampler_config=EntropyBoundSamplerConfig(entropy_bound=0.3),
        eos_token_id=[9, 31, 77],
        pad_token_id=0,
    )
    generate(
        model,
        ids,
        SAMPLER,
        attention_mask=mask,
        max_new_tokens=16,
        eos_token_id=[9, 31, 77],
        pad_token_id=0,
        streamer=mine,
        generator=torch.Generator().manual_seed(0),
    )
    assert [name for name, _ in mine.heard] == [name for name, _ in theirs.heard]
    assert {"put", "draft", "end"} == {name for name, _ in mine.heard}
    for (name, a), (_, b) in zip(mine.heard, theirs.heard, strict=True):
        assert a is b is None or torch.equal(a, b), name


@pytest.mark.parametrize("streamer_class", [TextStreamer, TextDiffusionStreamer])
def test_transformers_streamers_print_what_was_written(pair, capsys, streamer_class: type) -> None:
    """Drafts are printed and taken back by the diffusion streamer, never reaching the plain one."""
    _, model = pair(TWO_LAYERS)
    ids = tokens((1, 20), model.config.vocab_size - 1)
    streamer = streamer_class(Words(), skip_prompt=True, skip_special_tokens=True)
    out = generate(
        model,
        ids,
        SAMPLER,
        max_new_tokens=16,
        streamer=streamer,
        generator=torch.Generator().manual_seed(0),
    )
    printed = capsys.readouterr().out
    drafts = printed.count("\033[33m")
    assert drafts == (
        sum(canvas[0] for canvas in out.steps) if streamer_class is TextDiffusionStreamer else 0
    )
    final = "".join(
        part.partition("\0338\033[J")[2] if i else part
        for i, part in enumerate(printed.split("\0337"))
    )
    assert final.split() == Words().decode(out.tokens[0], skip_special_tokens=True).split()
