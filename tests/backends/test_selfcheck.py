"""Graphs are tried against the pure update before they are used, and what a block reduces is what the tensor holds."""

import pytest
import torch

import sandbox
import variants
from sandbox.blocks import (
    SCOPE,
    TENSOR,
    Gradient,
    Moment,
    NoMoment,
    NoRectifier,
    Rectifier,
    ScaleInvariantFloor,
    Stable,
    Unit,
    block,
)
from tests.light import KINDS, each, light


@block
class OwnNorm(Gradient):
    """torch's own reduction: over the whole arena where tensors lie in one."""

    def read(self, g):
        return g / (1 + g.norm())


@block
class Count(Gradient):
    """A count of entries: of the arena, padding included."""

    def step(self, x):
        return x.value / x.g.numel(), {}


@block
class OwnAxis(Gradient):
    """A reduction over an axis that is another one when tensors are vectors."""

    def step(self, x):
        return (x.value - x.value.mean(0, keepdim=True) if x.value.ndim > 1 else x.value), {}


@block
class Negative(Gradient):
    """The largest of negative numbers, which padding with zeros changes."""

    def step(self, x):
        return x.value + x.tensor.spread(x.tensor.amax(-x.value.abs() - 1)), {}


@block
class BySize(Gradient):
    """Chooses by a size."""

    def step(self, x):
        return (2 * x.value if x.g.numel() > 200_000 else x.value), {}


@block
class ByTime(Gradient):
    """Chooses by t in Python."""

    def step(self, x):
        return (2 * x.value if x.t < 3 else x.value), {}


def recipe(gradient, **slots):
    return sandbox.Recipe(**{"name": "tried", "gradient": gradient, "curvature": Unit(), "rectifier": NoRectifier(), **slots})


def stepped(recipe, backend, shapes=((3, 4), (5,), (2, 3)), steps=3, dtype=torch.float64, **options):
    draw = torch.Generator().manual_seed(0)
    params = [torch.randn(s, dtype=dtype, generator=draw).requires_grad_() for s in shapes]
    optimizer = sandbox.Optimizer(params, recipe, lr=0.05, backend=backend, **options)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, dtype=dtype, generator=draw)
        optimizer.step()
    return optimizer, params


@pytest.mark.parametrize(
    ("made", "backend", "says"),
    [
        (OwnNorm, "compiled", "some block does not act coordinate by coordinate; sum with x.scope.sum"),
        (Count, "compiled", "some block does not act coordinate by coordinate"),
        (OwnAxis, "compiled", "gives another θ for a tensor of shape"),
        (OwnAxis, "scripted", "gives another θ for a tensor of shape"),
        (Negative, "compiled", "some block does not act coordinate by coordinate"),
        (BySize, "compiled", "some block asks for a size"),
        (BySize, "scripted", "some block asks for a size"),
        (ByTime, "compiled", r"must not choose by the values of numbers or tensors; torch.where does"),
    ],
)
def test_what_a_layout_would_change_is_refused(made, backend, says):
    stepped(recipe(made()), "reference")  # where it is right
    with pytest.raises(ValueError, match=says):
        stepped(recipe(made()), backend)


@pytest.mark.parametrize("made", [OwnNorm, Count, OwnAxis, BySize, ByTime])
def test_the_default_runs_it_tensor_by_tensor_and_says_so(made):
    _, expected = stepped(recipe(made()), "reference")
    with pytest.warns(UserWarning, match=r"(?s)recipe 'tried' .*Its steps run tensor by tensor"):
        _, found = stepped(recipe(made()), "eager")
    assert all(torch.equal(p, q) for p, q in zip(expected, found, strict=True))


def test_the_default_knows_the_largest_of_negative_numbers():
    (_, expected), (_, found) = (stepped(recipe(Negative()), backend) for backend in ("reference", "eager"))
    for p, q in zip(expected, found, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-13, atol=0)


@block
class MeanSquare(Rectifier):
    """One number per scope, which stands for all coordinates of D."""

    state = {"s": SCOPE}

    def update(self, x, *, s):
        return {"s": x.scope.mean(x.g.square()).sqrt() + 1e-3}

    def read(self, B, *, s):
        return s


@block
class Sums(Gradient):
    """Sums of what stands for a whole tensor without having its shape count every coordinate."""

    state = {"total": TENSOR, "largest": TENSOR}

    def step(self, x, **state):
        mean = x.scope.mean(x.value)
        new = {"total": x.tensor.sum(x.scope.spread(mean)), "largest": x.tensor.amax(x.scope.spread(mean.abs()))}
        return x.value + x.tensor.spread(x.tensor.mean(x.scope.spread(mean))), new


@pytest.mark.parametrize(
    "scope", ["parameter", *(pytest.param(s, marks=pytest.mark.slow) for s in ("global", "channel", "coordinate"))]
)
def test_reductions_of_spread_numbers_count_every_coordinate(scope):
    """Stable decay takes the mean of a D that is one number per scope; against the reference, and the sums against NumPy."""
    made = recipe(Sums(), rectifier=MeanSquare(), decay=Stable(weight_decay=0.1), scope=scope)
    one, expected = stepped(made, "reference", shapes=((3, 5), (4,), (2, 3, 2)))
    for backend in ("compiled", "scripted"):
        two, found = stepped(made, backend, shapes=((3, 5), (4,), (2, 3, 2)))
        for p, q in zip(expected, found, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)
            for name, value in one.state[p].items():
                torch.testing.assert_close(two.state[q][name], value, rtol=1e-12, atol=1e-13)
    whole = torch.cat([p.grad.reshape(-1) for p in expected]).mean()
    for p in expected:
        mean = {"parameter": p.grad.mean(), "global": whole}.get(scope)
        mean = p.grad.mean() if mean is None else mean  # the mean of channel means of one size, and of coordinates
        torch.testing.assert_close(one.state[p]["gradient.0.total"], mean * p.numel())


@block
class Counted(Rectifier):
    """A state of one number per tensor, and as many numbers in all as a size that tracing might take (five)."""

    state = {"n": TENSOR}

    def update(self, x, *, n):
        return {"n": n + 1}

    def read(self, B, *, n):
        return n


def _few_numbers():
    made = [Counted(), ScaleInvariantFloor(), MeanSquare()]
    for i, scope in enumerate(["parameter", "global", "channel"]):
        for j, rectifier in enumerate(made):
            marks = [] if i == j == 0 else [pytest.mark.slow]
            yield pytest.param(scope, {"rectifier": rectifier}, id=f"{scope}-{type(rectifier).__name__}", marks=marks)


@pytest.mark.parametrize(("scope", "slots"), _few_numbers())
def test_no_count_of_numbers_is_taken_for_a_size(scope, slots):
    """Recipes of few numbers, some of them as many as there were owners or scopes in the example that was traced."""
    for moment in (NoMoment(), Moments()):
        made = recipe((), moment=moment, scope=scope, **slots)
        shapes = [(2, 3), (4,), (5, 1), (3,), (2,), (1, 6), (7,), (8,)]
        _, expected = stepped(made, "reference", shapes=shapes)
        for backend in ("compiled", "scripted"):
            _, found = stepped(made, backend, shapes=shapes)
            for p, q in zip(expected, found, strict=True):
                torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-12)


@block
class Moments(Moment):
    """m = g, kept: y = g - m."""

    state = {"m": "element"}

    def update(self, x, *, m):
        return {"m": x.value}


@block
class Phases(Gradient):
    """Coefficients of other names, and in another order, as time goes on."""

    def coefficients(self, t):
        if t < 3:
            return {"a": 2.0, "b": 3.0}
        return {"b": 3.0, "a": 2.0} if t < 5 else {"over": 4.0}

    def step(self, x):
        return (x.value * x.c.a / x.c.b if hasattr(x.c, "a") else x.value / x.c.over), {}


def test_coefficients_keep_their_names():
    _, expected = stepped(recipe(Phases()), "reference", steps=7)
    _, found = stepped(recipe(Phases()), "compiled", steps=7)
    for p, q in zip(expected, found, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-13, atol=1e-14)


def test_words_and_states_of_blocks_are_checked():
    @block
    class Misspelt(Gradient):
        state = {"s": "elemnt"}

    @block
    class Needy(Gradient):
        needs = ("hesian",)

    @block
    class Python(Gradient):
        state = {"s": TENSOR}

        def update(self, x, *, s):
            return {"s": 1.0}

    @block
    class Forgetful(Gradient):
        state = {"s": TENSOR}

        def update(self, x, *, s):
            return {}

    with pytest.raises(ValueError, match=r"Misspelt: state 's': .*did you mean 'element'"):
        Misspelt()
    with pytest.raises(ValueError, match=r"Needy: .*did you mean 'hessian'"):
        Needy()
    with pytest.raises(ValueError, match=r"Python.update must return tensors; its 's' is 1.0"):
        stepped(recipe(Python()), "eager")
    with pytest.raises(ValueError, match=r"Forgetful.update must return its states, s, by name; it returned nothing"):
        stepped(recipe(Forgetful()), "eager")


@pytest.mark.parametrize(
    "name", each((name for name in variants.names() if not variants.get(name).analysis.own_layout), few=KINDS)
)
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16], ids=str)
def test_every_variant_passes_in_the_arena(name, dtype):
    """The check itself raises no false alarm: in bfloat16, where rounding is largest, and float32, whatever the decay's rate."""
    from sandbox.backends.tracing import graph, selfcheck

    made = light(name)
    values, structure = graph.numbers_of(made, 1.0, 0.01, made.init(torch.zeros(2)), evaluated=True)
    width = 1 if made.scope == "channel" else 128
    signature = graph.Signature(structure, "arena", width, made.scope, dtype, dtype, torch.float32, "cpu", evaluated=True)
    selfcheck.check(made, signature, graph.trace(made, signature, opaque=True))
