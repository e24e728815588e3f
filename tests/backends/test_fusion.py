"""Operators that are computed in one pass: which are, and that they compute the same."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from sandbox.backends.recorded.fusion import fuse

A, X, Y = (torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in range(3))
NUMBER = torch.tensor(0.3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "others", "fused"),
    [
        (lambda a, x, y: a + x * y, [X, Y], "addcmul"),
        (lambda a, x, y: x * y + a, [X, Y], "addcmul"),
        (lambda a, x, y: a - x * y, [X, Y], "addcmul"),
        (lambda a, x, y: a - x * y, [NUMBER, Y], "addcmul"),
        (lambda a, x: a + x**2, [X], "addcmul"),
        (lambda a, x: (a * x).sum(), [X], "dot"),
        (lambda a: a.square().square().sum(), [], "dot"),
        (lambda a, x, y: x * y - a, [X, Y], ""),
        (lambda a, x, y: a + 2.0 * (x * y), [X, Y], ""),
        (lambda a, x: a + x**3, [X], ""),
        (lambda a, x: (a * x).sum(), [NUMBER], ""),
        (lambda a, x, y: torch.add(a, x * y, alpha=3.0), [X, Y], ""),
        (lambda a, x, y: (a + (p := x * y)) / p, [X, Y], ""),
        (lambda a, x, y: x + a * y, [NUMBER, Y], ""),  # the sum's first operand is of another shape
    ],
)
def test_what_is_fused(function, others, fused):
    """To rounding of one operation more or less (float64, sums of 50)."""
    module = make_fx(function)(A, *others)
    fuse(module, lambda node: node.meta["val"].ndim == 1)
    module.recompile()
    names = [n.target.overloadpacket.__name__ for n in module.graph.nodes if n.op == "call_function"]
    assert [name for name in names if name in ("addcmul", "dot")] == ([fused] if fused else [])
    assert "sum" not in names or fused != "dot"
    torch.testing.assert_close(module(A, *others), function(A, *others), rtol=1e-14, atol=1e-14)
