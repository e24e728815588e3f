"""A traced step of convolutional networks: the values of the plain one, in another order in memory."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from sandbox import ensemble
from sandbox.ensemble import compiled, memory_order
from sandbox.ensemble.memory_order import InMemoryOrder
from sandbox.ensemble.pooling import PoolsAsMeans

aten = torch.ops.aten
SHAPES = [(2, 3, 4), (1, 5), (3, 1, 2, 2), (7,), (2, 2, 3, 1, 2)]


def after_a_convolution():
    """The mode as it is from the first convolution on."""
    mode = InMemoryOrder()
    mode.convolved = True
    return mode


def moved(shape, order, seed=0):
    """Numbers of this shape whose axes lie in memory in this order, from the outermost."""
    x = np.random.default_rng(seed).standard_normal([shape[axis] for axis in order])
    return torch.from_numpy(x).permute([order.index(axis) for axis in range(len(shape))])


moved_tensors = st.sampled_from(SHAPES).flatmap(
    lambda shape: st.permutations(range(len(shape))).map(lambda order: (shape, list(order)))
)


@settings(deadline=None)
@given(moved_tensors, st.integers(0, 5), st.data())
def test_pointwise(where, function, data):
    """To the bit, of one operand or three, where one is smaller and one is a number."""
    shape, order = where
    x, y = moved(shape, order), moved(shape, data.draw(st.permutations(range(len(shape)))), seed=1)
    row = moved(shape[-1:], [0], seed=2)
    call = [
        lambda: x + y * row,
        lambda: torch.where(x > 0, y, torch.tensor(2.0, dtype=x.dtype)),
        lambda: torch.clamp(x, min=row),
        lambda: torch.frexp(x).mantissa,
        lambda: row.add(y, alpha=3),
        lambda: torch.tanh(x),
    ][function]
    expected = call()
    with after_a_convolution():
        found = call()
    assert torch.equal(found, expected)


@settings(deadline=None)
@given(moved_tensors, st.data())
def test_sums_and_means(where, data):
    """NumPy's, to rounding; any axes, counted from either end, kept or not."""
    shape, order = where
    x = moved(shape, order)
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    signed = [axis - len(shape) * data.draw(st.booleans()) for axis in axes]
    keep = data.draw(st.booleans())
    with after_a_convolution():
        total, mean = x.sum(signed, keepdim=keep), x.mean(signed, keepdim=keep)
    # 24 numbers of order 1
    np.testing.assert_allclose(total, x.numpy().sum(tuple(axes), keepdims=keep), rtol=0, atol=1e-13)
    np.testing.assert_allclose(mean, x.numpy().mean(tuple(axes), keepdims=keep), rtol=0, atol=1e-13)


def test_results_lie_as_the_operand_that_lies_otherwise():
    """Also where a first operand has the usual order, from which torch would take it."""
    x, y = torch.randn(2, 3, 4, 5), torch.randn(2, 4, 5, 3).permute(0, 3, 1, 2)
    with after_a_convolution():
        assert (x + y).stride() == y.stride()
        assert y.mean((2,), keepdim=True).permute(0, 2, 3, 1).is_contiguous()
        assert y.clone(memory_format=torch.contiguous_format).is_contiguous()
    with InMemoryOrder():
        assert (x + y).stride() == x.stride()  # nothing changes before the first convolution


def test_what_changes_its_operand_changes_it():
    x, y = moved((2, 3, 4), [0, 1, 2]), moved((2, 3, 4), [2, 0, 1], seed=1)
    expected = (x + y).relu()
    with after_a_convolution():
        x.add_(y).relu_()
    assert torch.equal(x, expected)


POOLS = list(
    itertools.product([2, (2, 3), (4,), 3], [None, 2, (2, 3)], [0, 1], [False, True], [True, False], [None, 3])
)  # size, stride, padding, ceil_mode, count_include_pad, divisor_override


@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (3, 8, 12)])
def test_average_pools_are_torchs(shape):
    """Value and gradient, whether windows tile the image or not."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(shape)).requires_grad_()
    for size, *more in POOLS:
        expected = functional.avg_pool2d(x, size, *more)
        with PoolsAsMeans():
            found = functional.avg_pool2d(x, size, *more)
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-15)  # a mean of at most 16 numbers of order 1
        v = torch.ones_like(expected).cumsum(-1)
        torch.testing.assert_close(*(torch.autograd.grad(y, x, v)[0] for y in (found, expected)), rtol=1e-14, atol=1e-15)
    with PoolsAsMeans():
        named = functional.avg_pool2d(input=x, kernel_size=2, ceil_mode=True)
    torch.testing.assert_close(named, functional.avg_pool2d(x, 2), rtol=1e-14, atol=1e-15)


def test_the_pools_that_tile_an_image_are_means():
    """No other pooling is; vmap's rule for it makes a copy."""
    x = torch.randn(2, 3, 8, 6)

    def taken(*arguments):
        with PoolsAsMeans():
            graph = make_fx(lambda x: functional.avg_pool2d(x, *arguments))(x)
        return aten.avg_pool2d.default not in {node.target for node in graph.graph.nodes}

    assert all([taken(2), taken((4, 3)), taken(2, 2, 0, True, False)])
    assert not any([taken(3), taken(2, 1), taken(2, 2, 1), taken(2, 2, 0, False, True, 3)])


def network(params, batch):
    """Convolution, tanh, pooling, twice; then a linear layer."""
    x = batch
    for weight, bias in (params[:2], params[2:4]):
        x = functional.avg_pool2d(torch.tanh(functional.conv2d(x, weight, bias, padding=1)), 2)
    return (x.flatten(1) @ params[4]).square().mean()


def members(count, dtype=torch.float64):
    rng = np.random.default_rng(0)
    shapes = [(3, 2, 3, 3), (3,), (4, 3, 3, 3), (4,), (16, 5)]
    return [torch.from_numpy(rng.standard_normal((count, *shape))).to(dtype) for shape in shapes]


def sources(graph):
    """The operators whose results, seen through views, go into convolutions as images or as gradients of them."""
    views = {getattr(aten, name) for name in ("view", "_unsafe_view", "permute", "squeeze", "unsqueeze", "alias")}
    found = []
    for node in graph.graph.nodes:
        if node.target in (aten.convolution.default, aten.convolution_backward.default):
            images = 2 if node.target is aten.convolution_backward.default else 1  # before the weight
            for source in node.args[:images]:
                while getattr(source.target, "overloadpacket", None) in views:
                    source = source.args[0]
                found.append(source.name.rstrip("_0123456789"))
    return found


def test_what_goes_into_a_convolution_is_no_copy():
    """Four members, eight images; a plain trace transposes each operand, the ordered one the batch alone."""
    params, batch = members(4, torch.float32), torch.randn(8, 2, 8, 8)
    gradients = vmap(grad(network), in_dims=(0, None))

    def ordered(params, batch):
        with InMemoryOrder(), PoolsAsMeans():
            return gradients(params, batch)

    graph = make_fx(ordered)(params, batch)
    for found, expected in zip(graph(params, batch), gradients(params, batch), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)  # sums of 512 products of order 1 in float32
        assert found.is_contiguous()  # as the state is that it meets in the update
    assert sources(make_fx(gradients)(params, batch)) == ["batch", "clone", "clone", "clone", "clone", "batch"]
    assert sources(graph) == ["clone", "mean", *2 * ["tanh_backward"], "mean", "tanh_backward", "clone"]
    masks = [node.args[-1] for node in graph.graph.nodes if node.target is aten.convolution_backward.default]
    assert masks == 2 * [[False, True, False]]  # an input's gradient is not computed twice


def test_tanh(monkeypatch):
    """torch's own kernel, from so many entries on."""
    torch.library.opcheck(torch.ops.sandbox.tanh_, (torch.randn(3, 4),))
    x = torch.randn(2, 4, 5, 3, dtype=torch.float64).permute(0, 3, 1, 2)

    def traced():
        def f(x):
            with after_a_convolution():
                return torch.tanh(x)

        graph = make_fx(f)(x)
        assert torch.equal(graph(x), torch.tanh(x))
        return torch.ops.sandbox.tanh_.default in {node.target for node in graph.graph.nodes}

    assert not traced()
    monkeypatch.setattr(memory_order, "LARGE", x.numel())
    assert traced()


def test_a_network_that_cannot_be_ordered_is_traced_as_it_is():
    """group_norm after a convolution asks vmap for a copy with channels last, which it does not make."""

    def grouped(weight, batch):
        return functional.group_norm(functional.conv2d(batch, weight), 2).square().mean()

    weights, batch = torch.randn(3, 4, 2, 3, 3), torch.randn(5, 2, 8, 8)
    gradients = vmap(grad(grouped), in_dims=(0, None))
    with pytest.raises(RuntimeError, match="ChannelsLast"), InMemoryOrder():
        gradients(weights, batch)
    graph = compiled._traced(lambda *tensors: [gradients(*tensors)], [weights, batch])
    torch.testing.assert_close(graph(weights, batch), [gradients(weights, batch)])


@pytest.mark.slow
def test_compiled(monkeypatch):
    monkeypatch.setattr(memory_order, "LARGE", 1)
    start = [p[0] for p in members(1)]
    batches = list(torch.from_numpy(np.random.default_rng(1).standard_normal((5, 8, 2, 8, 8))))

    def trained(fast):
        def stream(seed):
            return batches[seed:]

        return ensemble.run(
            "sgd", network, params=start, batches=stream, lr=[0.1, 0.05], seeds=2, steps=3, compiled=fast
        ).params

    for found, eager in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(found, eager, rtol=1e-12, atol=1e-13)
