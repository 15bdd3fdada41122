"""Router and experts: the order of softmax, top-k and scale, and the fast path against the plain
loop.
"""

import pytest
import torch
import torch.nn.functional as F
from tiny import generator, random_ids, tiny

from diffgemma_lite import Config
from diffgemma_lite.moe import Experts, Router

TINY = Config.preset("tiny")


def wide(module, seed=0):
    g = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=g).to(p.dtype) * 0.3 + (p.dim() < 2)
    return module


def tokens(n=12, seed=1):
    return torch.randn(n, TINY.hidden_size, generator=generator(seed)) * 4


def routing(n=12, k=2, experts=4, seed=2):
    g = generator(seed)
    index = torch.stack([torch.randperm(experts, generator=g)[:k] for _ in range(n)])
    return torch.rand(n, k, generator=g), index


def router_scores(router, x):
    normed = x * (x.pow(2).mean(-1, keepdim=True) + 1e-6) ** -0.5
    return (normed * router.scale / x.shape[-1] ** 0.5) @ router.proj.weight.T


def test_softmax_over_all_then_top_k_equals_softmax_over_the_top_k():
    """Pitfall 6: renormalising the k largest probabilities is a softmax over their scores."""
    router, x = wide(Router(TINY)), tokens()
    weights, index, _ = router(x)
    top, expected = router_scores(router, x).topk(2, -1)
    assert torch.equal(index, expected)
    torch.testing.assert_close(weights, top.softmax(-1) * router.per_expert_scale[index])


def test_the_per_expert_scale_comes_last_so_weights_need_not_sum_to_one():
    """Pitfall 6."""
    router, x = wide(Router(TINY)), tokens()
    router.per_expert_scale.data = torch.tensor([0.5, 2.0, 3.0, 0.1])
    weights, index, _ = router(x)
    plain = weights / router.per_expert_scale[index]
    torch.testing.assert_close(plain.sum(-1), torch.ones(len(x)))
    assert (weights.sum(-1) - 1).abs().min() > 0.05


def test_softmax_in_float32_under_bfloat16_input():
    """Pitfall 6."""
    router = wide(Router(TINY, dtype=torch.bfloat16))
    x = tokens().bfloat16()
    seen = []
    router.proj.register_forward_hook(lambda _, __, out: seen.append(out))
    weights, _, probs = router(x)
    assert seen[0].dtype == torch.bfloat16 and probs.dtype == weights.dtype == torch.float32
    assert torch.equal(probs, seen[0].float().softmax(-1))


def test_the_router_hands_out_probabilities_softmaxed_once():
    """Pitfall 7: a load-balance loss on these must not apply a softmax again.

    They sum to one already.
    """
    router, x = wide(Router(TINY)), tokens()
    probs = router(x)[2]
    torch.testing.assert_close(probs, router_scores(router, x).softmax(-1))
    torch.testing.assert_close(probs.sum(-1), torch.ones(len(x)))
    assert (probs - probs.softmax(-1)).abs().max() > 0.1


def test_the_router_does_not_see_the_length_of_its_input():
    """Its own norm has no weight; a residual ten times as long is routed alike."""
    router, x = wide(Router(TINY)), tokens()
    torch.testing.assert_close(router(x)[2], router(x * 10)[2])


def test_loop_against_one_token_at_a_time():
    experts, x, (weights, index) = wide(Experts(TINY)), tokens(), routing()
    expected = torch.zeros_like(x)
    for t in range(len(x)):
        for slot in range(2):
            e = index[t, slot]
            gate, up = (experts.gate_up_proj[e] @ x[t]).chunk(2)
            expected[t] += weights[t, slot] * (
                experts.down_proj[e] @ (F.gelu(gate, approximate="tanh") * up)
            )
    torch.testing.assert_close(experts.loop(x, weights, index), expected, atol=1e-4, rtol=1e-4)


CASES = {
    "each token its own": (TINY, 12, routing()),
    "one token": (TINY, 1, routing(1)),
    "an expert that nobody chose": (TINY, 12, (routing()[0], torch.tensor([[0, 3]] * 12))),
    "every expert for everybody": (Config.preset("tiny", top_k_experts=4), 5, routing(5, 4)),
    "a single expert each": (Config.preset("tiny", top_k_experts=1), 7, routing(7, 1)),
    "many experts": (Config.preset("tiny", num_experts=16), 9, routing(9, 2, 16)),
}


@pytest.mark.parametrize("case", CASES)
def test_grouped_equals_loop_in_values_and_gradients(case):
    config, n, (weights, index) = CASES[case]
    results = {}
    for path in ("loop", "grouped"):
        experts, x, w = (
            wide(Experts(config)),
            tokens(n).requires_grad_(),
            weights.clone().requires_grad_(),
        )
        experts.path = path
        out = experts(x, w, index)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        results[path] = (
            out.detach(),
            x.grad,
            w.grad,
            experts.gate_up_proj.grad,
            experts.down_proj.grad,
        )
    for plain, fast in zip(results["loop"], results["grouped"], strict=True):
        assert plain.abs().sum() > 0
        torch.testing.assert_close(fast, plain, atol=1e-4 * plain.abs().max().item(), rtol=1e-4)


def test_grouped_equals_loop_in_bfloat16():
    experts, x, (weights, index) = (
        wide(Experts(TINY, dtype=torch.bfloat16)),
        tokens().bfloat16(),
        routing(),
    )
    plain, fast = experts.loop(x, weights, index), experts.grouped(x, weights, index)
    assert plain.dtype == fast.dtype == torch.bfloat16
    torch.testing.assert_close(fast, plain, atol=0.05 * plain.abs().max().item(), rtol=0.05)


@torch.no_grad()
def test_the_whole_model_with_either_path_and_either_norm():
    ids, canvas = random_ids(2, 12), random_ids(2, 8, seed=1)
    model = tiny().set_kernels(experts="loop", fused_norm=False)
    plain = model.decode(canvas, model.encode(ids))
    for kernels in (
        dict(experts="grouped"),
        dict(experts="loop", fused_norm=True),
        dict(fused_norm=True),
    ):
        model.set_kernels(**kernels)
        torch.testing.assert_close(
            model.decode(canvas, model.encode(ids)), plain, atol=2e-3, rtol=2e-3
        )


def test_set_kernels_reaches_every_module():
    model = tiny().set_kernels(experts="loop", fused_norm=True)
    assert {m.path for m in model.modules() if isinstance(m, Experts)} == {"loop"}
    assert all(m.fused for m in model.modules() if hasattr(m, "fused"))
    with pytest.raises(ValueError, match="^experts: got 'fast', takes 'loop' or 'grouped'"):
        model.set_kernels(experts="fast")
