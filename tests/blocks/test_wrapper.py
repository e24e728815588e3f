"""Blocks around another block of their slot."""

import pytest
import torch

import variants
from sandbox.blocks import Bound, Broyden, Divide, Monotone, SquareRoot, TwoLoop, Unit, UnitLength
from tests.problem import Problem


def test_an_inner_block_has_its_own_coefficients():
    """Bounds within bounds, whose coefficients have the same names: the inner ones first, then the outer ones, bitwise."""
    narrow, wide = dict(ratio=30.0, gamma=0.1, beta=0.9), dict(ratio=10.0, gamma=0.3, beta=0.0)
    nested = Bound(**wide, inner=Bound(**narrow, inner=SquareRoot(eps=0.0)))
    recipe, seen = variants.get("adam").replace(rectifier=nested), []
    params = [torch.tensor(x) for x in Problem().start]
    state, changed = recipe.init(params), set()
    for t in range(1, 6):
        grads = [torch.tensor(g) for g in Problem().gradient(t, [p.numpy() for p in params])]
        state, params = recipe.update(state, params, grads, lr=0.01, observe=lambda i, x: seen.append(x))
        for x in seen[-len(params) :]:
            D = x.averaged.sqrt()
            for bounds in (narrow, wide):
                b = (1 - bounds["beta"] ** t) * bounds["ratio"]
                low, high = 1 / (b * (1 + 1 / (bounds["gamma"] * t))), 1 / (b * (1 - 1 / (bounds["gamma"] * t + 1)))
                before, D = D, D.clamp(low, high)
                changed |= {bounds["ratio"]} if not torch.equal(before, D) else set()
            assert torch.equal(x.D, D)
    assert changed == {10.0, 30.0}


@pytest.mark.parametrize("outer", [Bound, Monotone])
def test_what_is_taken_over_from_the_inner_block(outer):
    inner = variants.get("belief").rectifier
    made = outer(inner=inner)
    assert made.needs == inner.needs
    assert made.state == {**({"D": "element"} if outer is Monotone else {}), **inner.state}
    assert made.text.startswith(f"{inner.text};  D = ")
    assert made.latex.startswith(rf"{inner.latex},\quad ")


@pytest.mark.parametrize(
    ("made", "error", "said"),
    [
        (lambda: Bound(inner=Unit()), TypeError, r"Bound: inner must be a block for slot 'rectifier', got Unit\(\)"),
        (lambda: UnitLength(inner=3.0), TypeError, "UnitLength: inner must be a block for slot 'solve', got 3.0"),
        (lambda: Monotone(inner=Divide()), TypeError, "Monotone: inner must be a block for slot 'rectifier'"),
        (lambda: Monotone(inner=Monotone()), TypeError, "inner must not keep a state named D, Monotone does"),
        (lambda: TwoLoop(memory=2.5), ValueError, "memory must be a whole number of at least 0, got 2.5"),
        (lambda: Broyden(memory="x"), ValueError, "memory must be a whole number of at least 1, got 'x'"),
    ],
)
def test_what_is_refused(made, error, said):
    with pytest.raises(error, match=said):
        made()
