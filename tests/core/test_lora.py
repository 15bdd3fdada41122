"""Low-rank adapters: nothing changes at the start, only they are trained, merging and going back,
files, bad input.
"""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import C, Example, V, exact, generator, random_ids, refused, tiny

from diffgemma_lite import DiffusionGemma
from diffgemma_lite.lora import (
    LINEARS,
    add_lora,
    load_lora,
    lora_parameters,
    merge,
    remove_lora,
    save_lora,
    unmerge,
)
from diffgemma_lite.loss import collate, total_loss
from diffgemma_lite.parts import PARTS, matrices
from diffgemma_lite.train import TrainConfig, make_optimizer, train

PROMPT, CANVAS = random_ids(2, 9), random_ids(2, C, seed=1)


def logits(model) -> torch.Tensor:
    """The decoder's, with a belief, so that every part of the model works."""
    with torch.no_grad():
        cache = model.encode(PROMPT.to(model.device))
        return model.decode(CANVAS, cache, model.decode(CANVAS, cache))


def stirred(model, seed: int = 5):
    """Adapters as if they had been trained: B is no longer zero."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in lora_parameters(model).items():
            if name.endswith(".b"):
                p.copy_(torch.randn(p.shape, generator=g) * 0.3)
    return model


def weights(model) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def equal(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("parts", [LINEARS, "everything", *PARTS])
@pytest.mark.parametrize("path", ["loop", "grouped"])
def test_at_the_start_the_adapted_model_is_the_base(parts, path):
    model = tiny().set_kernels(experts=path)
    before = logits(model)
    assert torch.equal(logits(add_lora(model, 3, parts=parts)), before)
    assert not torch.equal(logits(stirred(model)), before), (
        "the adapters must be in the way of the signal"
    )


@pytest.mark.parametrize("rank", [1, 2, 8, 32])
def test_count_of_trainable_parameters(rank):
    model, wanted = tiny(), 0
    for module in matrices(model, "everything").values():
        for w in module.parameters(recurse=False):
            experts = w.shape[0] if w.dim() == 3 else 1
            wanted += experts * rank * (w.shape[-1] + w.shape[-2])
    add_lora(model, rank, parts="everything")
    trainable = {id(p) for p in model.parameters() if p.requires_grad}
    assert trainable == {id(p) for p in lora_parameters(model).values()}
    assert sum(p.numel() for p in lora_parameters(model).values()) == wanted
    logits(model)


def batch_loss(model) -> torch.Tensor:
    examples = [Example([5, 6, 7], [8, 9, 10]), Example([11, 12], [13])]
    batch = collate(
        examples,
        [0, 1],
        canvas_length=C,
        vocab_size=V,
        eos=1,
        pad=0,
        seed=0,
        epoch=0,
        self_conditioning=1.0,
    )
    return total_loss(model, batch)


@pytest.mark.parametrize("path", ["loop", "grouped"])
def test_gradients_reach_every_adapter_and_nothing_else(path):
    model = stirred(add_lora(tiny().set_kernels(experts=path), 2, parts="everything"))
    batch_loss(model).backward()
    own = lora_parameters(model)
    silent = [name for name, p in own.items() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    assert not silent
    ids = {id(p) for p in own.values()}
    assert all(p.grad is None for p in model.parameters() if id(p) not in ids)


def test_loop_and_grouped_agree_in_value_and_gradient():
    found, (x, w) = [], torch.rand(2, 6, 32, generator=torch.Generator().manual_seed(0))
    index = torch.tensor([[0, 1], [1, 2], [3, 0], [2, 3], [0, 2], [1, 3]])
    for path in ("loop", "grouped"):
        model = stirred(
            add_lora(tiny().set_kernels(experts=path), 2, parts="experts", generator=generator())
        )
        out = model.layers[0].experts(x, w[:, :2], index)
        (out * x).sum().backward()
        found.append(
            (
                out.detach(),
                *(p.grad for n, p in lora_parameters(model).items() if n.startswith("layers.0.")),
            )
        )
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_gradient_is_that_of_the_weight_by_the_chain_rule():
    model, plain = stirred(add_lora(exact(), 2, alpha=6.0, parts="attention")), exact()
    own = lora_parameters(model)
    name = "layers.0.self_attn.o_proj"
    merged = merge(copy.deepcopy(model))
    plain.load_state_dict(merged.state_dict())
    for m in (model, plain):
        batch_loss(m).backward()
    g, (a, b) = plain.get_submodule(name).weight.grad, (own[f"{name}.weight.{k}"] for k in "ab")
    assert torch.allclose(b.grad.double(), 3.0 * g @ a.double().T, atol=1e-6)
    assert torch.allclose(a.grad.double(), 3.0 * b.double().T @ g, atol=1e-6)


def test_merge_is_an_ordinary_model_and_unmerge_gives_the_base_back(tmp_path):
    base = weights(tiny())
    model = stirred(add_lora(tiny(), 4, parts="everything"))
    adapted, trained = (
        logits(model),
        {k: p.detach().clone() for k, p in lora_parameters(model).items()},
    )
    merge(model)
    assert (
        base.keys() == model.state_dict().keys()
        and type(model.layers[0].mlp.up_proj) is torch.nn.Linear
    )
    assert torch.equal(logits(model), adapted), (
        "the merged weight is the sum that the adapted forward reads"
    )
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(DiffusionGemma.from_pretrained(tmp_path)), adapted)
    unmerge(model)
    assert torch.equal(logits(model), adapted)
    assert all(torch.equal(trained[k], p) for k, p in lora_parameters(model).items())
    remove_lora(model)
    assert equal(weights(model), base) and all(p.requires_grad for p in model.parameters())


def test_going_back_from_merged_at_once_and_trainable_as_before():
    model = tiny()
    model.norm.weight.requires_grad_(False)
    base = weights(model)
    remove_lora(merge(stirred(add_lora(model, 2))))
    assert equal(weights(model), base)
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["norm.weight"]


def test_a_subtraction_would_not_give_the_base_back():
    """Why the originals are kept."""
    low = stirred(add_lora(tiny(), 2, parts="dense_mlp")).lora.adapters[
        "layers.0.mlp.up_proj", "weight"
    ]
    w = tiny().layers[0].mlp.up_proj.weight.detach()
    with torch.no_grad():
        back = low(w) - (low(torch.zeros_like(w)))
    assert torch.allclose(back, w, atol=1e-5) and not torch.equal(back, w)


def test_tied_embedding_moves_input_and_head_together():
    model = stirred(add_lora(tiny(), 2, parts="embedding"))
    with torch.no_grad():
        w = model.embed_tokens.weight
        assert torch.equal(
            model.logits(w[:3][None]),
            model.config.final_logit_softcapping
            * torch.tanh((w[:3][None] @ w.T) / model.config.final_logit_softcapping),
        )


def test_bfloat16_autocast_and_bfloat16_base():
    model = stirred(add_lora(tiny(), 2))
    with torch.autocast("cpu", torch.bfloat16):
        adapted = logits(model)
        assert torch.equal(logits(merge(model)), adapted)
        loss = batch_loss(unmerge(model))
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in lora_parameters(model).values())
    low = stirred(add_lora(tiny().to(torch.bfloat16), 2))
    adapted = logits(low)
    assert adapted.isfinite().all() and torch.equal(logits(merge(low)), adapted)


def test_a_copy_has_adapters_of_its_own():
    model = stirred(add_lora(tiny(), 2))
    other, before = copy.deepcopy(model), logits(model)
    stirred(other, seed=6)
    assert torch.equal(logits(model), before) and not torch.equal(logits(other), before)
    merge(other)
    assert torch.equal(logits(model), before)


def test_the_training_loop_trains_adapters_only_and_resumes(tmp_path):
    examples, plan = (
        [Example([5, 6], [7, 8, 9]), Example([4, 9], [3])],
        dict(batch_size=2, warmup_steps=0, log_every=1, checkpoint_every=2),
    )
    config = TrainConfig(steps=4, learning_rate=0.01, **plan)

    def fresh():
        return add_lora(tiny(), 2, generator=generator())

    whole, cut, again = fresh(), fresh(), fresh()
    assert {id(p) for g in make_optimizer(whole, config).param_groups for p in g["params"]} == {
        id(p) for p in lora_parameters(whole).values()
    }
    base = logits(whole)
    train(whole, examples, config, progress=False)
    train(cut, examples, config, folder=tmp_path, progress=False, on_log=lambda e: e["step"] == 2)
    train(again, examples, config, folder=tmp_path, progress=False)
    a, b = lora_parameters(whole), lora_parameters(again)
    assert all(torch.equal(a[k], b[k]) for k in a) and not torch.equal(logits(whole), base)
    assert equal(weights(remove_lora(whole)), weights(tiny()))


@pytest.mark.parametrize("rank, parts", [(1, "router"), (5, ("experts", "self_conditioning"))])
def test_adapters_in_a_file(rank, parts, tmp_path):
    model = stirred(add_lora(tiny(), rank, alpha=2.0, parts=parts))
    save_lora(model, tmp_path / "a.safetensors")
    assert load_file(tmp_path / "a.safetensors").keys() == lora_parameters(model).keys()
    other = load_lora(tiny(), tmp_path / "a.safetensors")
    assert torch.equal(logits(other), logits(model))
    assert (other.lora.rank, other.lora.alpha, other.lora.parts) == (
        model.lora.rank,
        2.0,
        model.lora.parts,
    )
    save_lora(merge(model), tmp_path / "merged.safetensors")
    assert equal(load_file(tmp_path / "merged.safetensors"), load_file(tmp_path / "a.safetensors"))


@pytest.mark.usefixtures("unchecked")
def test_refused(tmp_path):
    model = tiny()
    for bad in (0, -1, 1.5, True, "8"):
        with refused("rank", str(bad), "integer of at least 1"):
            add_lora(model, bad)
    for bad in (0, -2.0, float("nan"), float("inf"), "1", True):
        with refused("alpha", str(bad), "above 0"):
            add_lora(model, 2, alpha=bad)
    for bad in ("norms", (), 7):
        with refused("parts", "takes 'everything'"):
            add_lora(model, 2, parts=bad)
    for do in (lora_parameters, merge, unmerge, remove_lora):
        with refused("model", "no adapters", "add_lora"):
            do(model)
    with refused("model", "Linear", "DiffusionGemma"):
        add_lora(torch.nn.Linear(2, 2))
    assert equal(weights(model), weights(tiny())) and all(
        p.requires_grad for p in model.parameters()
    )
    add_lora(model, 2)
    with refused("model", "rank 2 already", "remove_lora"):
        add_lora(model, 2)
    with refused("model", "not merged"):
        unmerge(model)
    with refused("model", "merge\\(model\\)"):
        model.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    with refused("model", "takes one that is not"):
        merge(merge(model))
    with torch.no_grad():
        model.layers[0].mlp.up_proj.weight.add_(1.0)
    with refused("model", "layers.0.mlp.up_proj.weight", "changed"):
        unmerge(model)


@pytest.mark.usefixtures("unchecked")
def test_refused_files(tmp_path):
    path = tmp_path / "a.safetensors"
    with refused("path", "safetensors"):
        load_lora(tiny(), path)
    save_file({"x": torch.ones(1)}, path)
    with refused("path", "save_lora"):
        load_lora(tiny(), path)
    save_lora(add_lora(tiny(), 2), path)
    small = tiny(num_experts=8)
    with refused("path", "other adapters"):
        load_lora(small, path)
    assert not hasattr(small, "lora") and all(p.requires_grad for p in small.parameters())
    broken = add_lora(tiny(), 2)
    next(iter(lora_parameters(broken).values())).data.fill_(float("nan"))
    with refused("model", "NaN"):
        save_lora(broken, path)
    with refused("path", "folder"):
        save_lora(add_lora(tiny(), 2), tmp_path)
