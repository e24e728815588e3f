"""Stochastic rounding of states: against NumPy's unsigned integers and exact fractions, and in every backend.

Whether the hash is as good as random is a matter of statistics: seeds are fixed, and bounds are 4.5 standard deviations (7e-6 of
a normal number), 5 (6e-7) where thousands of numbers are held to one.
"""

import hashlib
import math

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.backends.arena import leaves
from sandbox.blocks import ELEMENT
from sandbox.recipe import rounding

BF16 = torch.bfloat16
# small ones, one of many rows, and one that goes its own way, in more than one piece
SHAPES = [(3, 4), (5,), (2, 3, 2), (), (700,), (400, 400)]
# a word, two, three with scope states, one that recalls nothing, odd ones, other scopes
RECIPES = [
    "sgd",
    "adamw",
    "apollo",
    "scale-invariant",
    "adan",
    "ademamix",
    "channel-secant",
    "global-secant",
    "monotone",
    "muon",
    "soap",
]


def neighbours(x):
    """The bfloat16 numbers below and above each float32 (equal where it is one), exactly, as float64."""
    x = np.asarray(x, dtype=np.float64)
    quantum = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 8, -133))  # eight bits, or the smallest subnormal
    return np.floor(x / quantum) * quantum, np.ceil(x / quantum) * quantum


def reference_bits(seed, t, count, number, first=0):
    """The 16 bits of state `number` at each entry, in unsigned arithmetic."""
    key = int.from_bytes(hashlib.blake2b(f"rounding {seed}/{t}".encode(), digest_size=4).digest(), "little")
    x = (np.arange(first, first + count, dtype=np.uint64) + key + number // 2 * 0x9E3779B9).astype(np.uint32)
    x = x * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return (x >> np.uint32(16 * (number % 2))) & np.uint32(0xFFFF)


def reference(x, bits):
    """|x| + bits · 2⁻¹⁶ of the gap, cut off: x rounded away from zero with probability (its distance)/(the gap)."""
    low, high = neighbours(np.abs(x))
    share = np.where(high > low, (np.abs(np.float64(x)) - low) / np.where(high > low, high - low, 1.0), 0.0)
    return np.sign(x) * np.where(share * 2**16 + bits >= 2**16, high, low)


def numbers(count, seed=0):
    """float32 of all sizes, subnormal ones among them."""
    draw = np.random.default_rng(seed)
    return (draw.standard_normal(count) * 2.0 ** draw.integers(-140, 120, count)).astype(np.float32)


def counter(shape, seed, t, first=0):
    return rounding.entry_numbers(torch.empty(shape)) + rounding.key(seed, t, first)


def test_every_number_goes_to_its_neighbours_as_often_as_its_distance_says():
    """Over all 65,536 values of the bits the mean is the number itself, exactly."""
    for x in [*numbers(20), np.float32(1.0), np.float32(-0.0), np.float32(3e38), np.finfo(np.float32).tiny / 3]:
        found = (
            rounding.round_to_bfloat16(torch.full((2**16,), float(x)), torch.arange(2**16, dtype=torch.int32)).double().numpy()
        )
        low, high = neighbours(x)
        assert set(found.tolist()) <= {float(low), float(high)}
        assert math.fsum(found) == float(x) * 2**16


def test_bits_and_rounding_are_those_of_unsigned_arithmetic():
    x = numbers(10_000)
    kinds = dict.fromkeys("abcde", ELEMENT)
    for seed, t, first in [(0, 1, 0), (7, 12_345, 2**31 - 5_000), (-3, 2, 2**33 + 1)]:
        found = rounding.round_states(
            kinds, dict.fromkeys(kinds, torch.from_numpy(x)), counter((100, 100), seed, t, first).view(-1)
        )
        for number, name in enumerate(kinds):
            wanted = reference(x, reference_bits(seed, t, len(x), number, first))
            np.testing.assert_array_equal(found[name].double().numpy(), wanted)


def test_what_is_no_number_stays_what_it_is():
    payloads = torch.tensor([0x7FFFFFFF, 0x7F800001, -1, 0x7F800000, -0x800000], dtype=torch.int32).view(torch.float32)
    for bits in (0, 1, 0xFFFF):
        found = rounding.round_to_bfloat16(payloads, torch.full((5,), bits, dtype=torch.int32))
        assert found[:3].isnan().all()
        assert found[3:].tolist() == [math.inf, -math.inf]


def test_over_steps_and_entries_the_bits_are_as_good_as_random():
    """Uniform for each entry over the steps and in each step over the entries; no correlation between neighbours, steps, halves
    or pairs of states."""
    count, steps = 1024, 2048
    kinds = dict.fromkeys("abc", ELEMENT)
    half = torch.full((count,), 1.0 + 2.0**-8)  # in the middle of a gap: up and down are even odds
    up = []
    for t in range(1, steps + 1):
        made = rounding.round_states(kinds, dict.fromkeys(kinds, half), counter((count,), 0, t))
        up.append(torch.stack([made[name] > 1 for name in kinds]))
    z = 2 * torch.stack(up).double() - 1  # (steps, states, entries), ±1
    assert (z.mean(0).abs() * steps**0.5).max() < 5
    assert (z.mean(2).abs() * count**0.5).max() < 5
    total = z.numel() ** 0.5
    for lag in (1, 2, 3, 4, 8, 16, 64, 128):
        assert abs((z[:, :, lag:] * z[:, :, :-lag]).sum()) / total < 4.5
        assert abs((z[lag:] * z[:-lag]).sum()) / total < 4.5
    for one, two in [(0, 1), (0, 2), (1, 2)]:
        assert abs((z[:, one] * z[:, two]).sum()) / (steps * count) ** 0.5 < 4.5


def test_a_sum_that_grows_by_less_than_a_gap_still_grows():
    """AdaGrad's sum at 1.0, with g² = 2⁻¹²: a sixteenth of the gap.  To the nearest it would stand still; at random its mean
    grows by g² a step, with a variance of at most g² times the gap each."""
    n, steps, square, gap = 4096, 64, 2.0**-12, 2.0**-7
    p = torch.zeros(n, requires_grad=True)
    optimizer = sandbox.Optimizer([p], "adagrad", state_dtype=BF16)
    optimizer.state[p]["curvature.B"].fill_(1.0)
    for _ in range(steps):
        p.grad = torch.full((n,), square**0.5)
        optimizer.step()
    deviation = (steps * square * gap / n) ** 0.5
    mean = float(optimizer.state[p]["curvature.B"].double().mean())
    assert abs(mean - 1.0 - steps * square) < 4.5 * deviation
    assert torch.tensor(1.0 + square).to(BF16) == 1.0


def parameters(seed=1):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw).requires_grad_() for shape in SHAPES]


def give(params, t, without=()):
    draw = torch.Generator().manual_seed(100 + t)
    for i, p in enumerate(params):
        g = torch.randn(p.shape, generator=draw)
        p.grad = None if i in without else g


def cases():
    """Compiled, each recipe takes some seconds."""
    for name in RECIPES:
        yield pytest.param(name, {"backend": "reference"}, id=f"{name}-reference")
        yield pytest.param(name, {}, id=f"{name}-eager")
        yield pytest.param(name, {"backend": "compiled", "flat": True}, id=f"{name}-flat", marks=pytest.mark.slow)
        yield pytest.param(name, {"backend": "compiled"}, id=f"{name}-compiled", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "options"), cases())
def test_a_step_rounds_what_a_float32_step_computes(name, options):
    """Each step from the same states: what `Recipe.update` gives in float32, rounded in NumPy.  The reference does to the bit;
    other backends sum in another order, so a float32 value may lie an ulp further and, rarely, on the other side."""
    recipe, params = variants.get(name), parameters()
    optimizer = sandbox.Optimizer(params, recipe, lr=0.01, state_dtype=BF16, seed=5, **options)
    for t in (1, 2, 3):
        give(params, t)
        before = [
            {n: v.to(torch.float32) if v.dtype == BF16 else v.clone() for n, v in optimizer.state[p].items()} for p in params
        ]
        right, _ = recipe.update(before, [p.detach().clone() for p in params], [p.grad for p in params], lr=0.01)
        optimizer.step()
        for p, wide in zip(params, right, strict=True):
            elements = [n for n, kind in recipe.of(p).analysis.state_kinds.items() if kind == ELEMENT]
            for name, found in optimizer.state[p].items():
                if name not in elements:
                    assert found.dtype == wide[name].dtype
                    torch.testing.assert_close(found, wide[name], rtol=1e-5, atol=1e-6)
                    continue
                assert found.dtype == BF16
                x, found = wide[name].numpy().ravel(), found.double().numpy().ravel()
                wanted = reference(x, reference_bits(5, t, x.size, elements.index(name)))
                if options == {"backend": "reference"}:
                    np.testing.assert_array_equal(found, wanted)
                low, high = neighbours(x)
                slack = 2e-6 * np.abs(x).max(initial=0)  # of a float32 value that is itself a difference
                assert ((low - slack <= found) & (found <= high + slack)).all()
                assert np.mean(found != wanted) < 5e-3


@pytest.mark.parametrize("backend", ["reference", "eager", pytest.param("compiled", marks=pytest.mark.slow)])
def test_the_layout_of_a_tensor_does_not_matter(backend, monkeypatch):
    """AdamW sums over nothing, so that every entry has the same bits wherever its tensor lies: with others, alone, in an arena or
    not, in channels' order or not; and each tensor counts its own steps."""

    def states(params, missing=(), **options):
        optimizer = sandbox.Optimizer(params, "adamw", backend=backend, state_dtype=BF16, **options)
        for t in (1, 2, 3):
            give(params, t, without=missing if t == 2 else ())
            optimizer.step()
        return [optimizer.state[p] for p in params]

    one = states(parameters())
    with monkeypatch.context() as patch:
        patch.setitem(leaves.LARGE, "cpu", 4)  # every tensor its own way
        apart = states(parameters())
    with monkeypatch.context() as patch:
        patch.setitem(leaves.LARGE, "cpu", 2**30)  # all in one arena
        joined = states(parameters())
    for other in (apart, joined):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a["moment.m"], b["moment.m"])
            assert torch.equal(a["curvature.v"], b["curvature.v"])
    late = states(parameters(), missing=(0, 3))
    assert late[0]["step"] == 2
    for i in (1, 2, 4, 5):
        assert torch.equal(one[i]["moment.m"], late[i]["moment.m"])


def test_a_large_tensor_of_channels_in_pieces():
    """Its pieces begin at whole channels, and count on where the last one ended."""
    p = torch.randn(40, 100, 100, generator=torch.Generator().manual_seed(0)).requires_grad_()
    q = p.detach().clone().requires_grad_()
    one = sandbox.Optimizer([p], "channel-secant", lr=0.01, state_dtype=BF16)
    two = sandbox.Optimizer([q], "channel-secant", lr=0.01, state_dtype=BF16, backend="reference")
    p.grad = q.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    one.step()
    two.step()
    assert torch.equal(one.state[p]["moment.m"], two.state[q]["moment.m"])
