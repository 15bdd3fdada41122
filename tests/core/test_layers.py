"""The small layers, each against its formula written out by hand."""

import math

import pytest
import torch
from tiny import generator, random_ids

from diffgemma_lite.layers import (
    GatedMLP,
    RMSNorm,
    ScaledEmbedding,
    rotary_frequencies,
    rotary_tables,
    rotate,
    soft_cap,
)

EPS = 1e-6


def _x(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed))


def test_rms_norm_is_x_over_its_root_mean_square():
    norm, x = RMSNorm(6, EPS), _x(2, 3, 6) * 5
    norm.weight.data = torch.arange(1.0, 7.0)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * torch.arange(1.0, 7.0)
    torch.testing.assert_close(norm(x), expected)
    assert RMSNorm(6, EPS, with_scale=False).weight is None
    torch.testing.assert_close(
        RMSNorm(6, EPS, with_scale=False)(x).pow(2).mean(-1), torch.ones(2, 3)
    )


def test_rms_norm_eps_stands_inside_the_root():
    x = torch.full((1, 4), 1e-3)
    # x^2 = eps = 1e-6
    assert RMSNorm(4, EPS)(x)[0, 0].item() == pytest.approx(math.sqrt(0.5), rel=1e-5)


def test_rms_norm_of_zero_is_zero():
    assert RMSNorm(4, EPS)(torch.zeros(1, 4)).abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_scale", [True, False])
def test_fused_norm_equals_the_plain_one(dtype, with_scale):
    norm = RMSNorm(32, EPS, with_scale, dtype=dtype)
    if with_scale:
        norm.weight.data.uniform_(0.5, 2.0, generator=generator())
    x = _x(4, 5, 32).to(dtype) * 3
    plain = norm(x)
    norm.fused = True
    assert plain.dtype == norm(x).dtype == dtype
    torch.testing.assert_close(norm(x), plain)


def test_rms_norm_computes_in_float32():
    """In bfloat16 the mean of squares of 4096 values loses digits.

    The result may only be rounded once, at the end.
    """
    x = _x(1, 4096).bfloat16()
    assert torch.equal(
        RMSNorm(4096, EPS, dtype=torch.bfloat16)(x), RMSNorm(4096, EPS)(x.float()).bfloat16()
    )


def test_full_rotary_frequencies():
    expected = torch.tensor([1 / 10_000 ** (2 * i / 8) for i in range(4)])
    torch.testing.assert_close(rotary_frequencies(8, 10_000.0), expected)


@pytest.mark.parametrize("head_width", [16, 64, 512])
def test_proportional_rotary_frequencies(head_width):
    """Pitfall 8: Hd / 2 frequencies, the last three quarters zero, and the exponent counts in the
    full head width.
    """
    f = rotary_frequencies(head_width, 1e6, 0.25)
    turning = head_width // 8
    assert f.shape == (head_width // 2,)
    assert torch.equal(f[turning:], torch.zeros(head_width // 2 - turning))
    torch.testing.assert_close(
        f[:turning], torch.tensor([1e6 ** (-2 * i / head_width) for i in range(turning)])
    )


def test_lane_i_turns_with_lane_i_plus_half():
    """Pitfall 8: the pair (i, i + Hd / 2) is one complex number, multiplied by exp(i angle)."""
    x, positions = _x(2, 5, 3, 8), torch.arange(7, 12)[None]
    f = rotary_frequencies(8, 100.0)
    turned = rotate(x, *rotary_tables(positions, f, torch.float32))
    z = (
        torch.complex(x[..., :4], x[..., 4:])
        * torch.exp(1j * positions[0].float()[:, None] * f)[None, :, None]
    )
    torch.testing.assert_close(turned, torch.cat([z.real, z.imag], -1))


def test_still_lanes_pass_unchanged():
    x = _x(1, 4, 2, 16)
    turned = rotate(
        x, *rotary_tables(torch.arange(4)[None], rotary_frequencies(16, 1e6, 0.25), torch.float32)
    )
    still = [i for i in range(16) if i % 8 >= 2]
    assert torch.equal(turned[..., still], x[..., still])
    assert (turned[0, 1:] - x[0, 1:])[..., [0, 1, 8, 9]].abs().min() > 0


def test_scores_depend_on_the_distance_alone():
    q, k, f = _x(1, 1, 1, 8), _x(1, 1, 1, 8, seed=1), rotary_frequencies(8, 100.0)

    def score(at_q, at_k):
        turned = [
            rotate(x, *rotary_tables(torch.tensor([[p]]), f, torch.float32))
            for x, p in ((q, at_q), (k, at_k))
        ]
        return (turned[0] * turned[1]).sum().item()

    assert score(5, 2) == pytest.approx(score(25, 22), abs=1e-5)
    assert score(5, 2) != pytest.approx(score(2, 5), abs=1e-2)


def test_rows_may_sit_at_positions_of_their_own():
    x, f = _x(2, 3, 1, 8), rotary_frequencies(8, 100.0)
    positions = torch.tensor([[0, 1, 2], [7, 8, 9]])
    both = rotate(x, *rotary_tables(positions, f, torch.float32))
    for row in range(2):
        alone = rotate(x[row : row + 1], *rotary_tables(positions[row : row + 1], f, torch.float32))
        assert torch.equal(both[row : row + 1], alone)


def test_gated_mlp():
    mlp, x = GatedMLP(4, 6), _x(2, 3, 4)
    gate, up = x @ mlp.gate_proj.weight.T, x @ mlp.up_proj.weight.T
    gelu = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    torch.testing.assert_close(mlp(x), (gelu * up) @ mlp.down_proj.weight.T)
    assert all(p.dim() == 2 for p in mlp.parameters())  # no biases


def test_embedding_is_scaled_by_the_root_of_the_width():
    """Pitfall 12."""
    embedding, ids = ScaledEmbedding(97, 32), random_ids(2, 5)
    torch.testing.assert_close(embedding(ids), embedding.weight[ids] * math.sqrt(32))


def test_embedding_scale_is_rounded_to_the_weights_dtype():
    embedding = ScaledEmbedding(97, 2816).bfloat16()
    assert embedding.scale().item() == 53.0 != 2816**0.5
    ids = random_ids(1, 3)
    assert torch.equal(
        embedding(ids), embedding.weight[ids] * torch.tensor(53.0, dtype=torch.bfloat16)
    )


def test_soft_embedding_of_a_certain_belief_is_the_embedding():
    embedding, ids = ScaledEmbedding(97, 32), random_ids(2, 5)
    certain = torch.nn.functional.one_hot(ids, 97).float()
    torch.testing.assert_close(embedding.soft(certain), embedding(ids))
    uniform = torch.full((1, 1, 97), 1 / 97)
    torch.testing.assert_close(
        embedding.soft(uniform)[0, 0], embedding.weight.mean(0) * math.sqrt(32)
    )


def test_soft_cap():
    """Pitfall 12: nearly the identity near zero, never beyond the cap, and float32 whatever comes
    in.
    """
    x = torch.tensor([-1e4, -30.0, -0.01, 0.0, 0.01, 30.0, 1e4])
    y = soft_cap(x, 30.0)
    torch.testing.assert_close(y, 30 * torch.tanh(x / 30))
    assert y.abs().max() <= 30 and y[3] == 0 and y[2].item() == pytest.approx(-0.01, rel=1e-4)
    assert soft_cap(x.bfloat16(), 30.0).dtype == torch.float32
