"""Convolutions of many members: torch's own values, whatever the geometry."""

import itertools

import numpy as np
import pytest
import torch
from torch.func import grad_and_value, vmap
from torch.nn import functional

from sandbox import ensemble
from sandbox.ensemble import compiled, convolutions

aten = torch.ops.aten
# kernel, stride, padding, dilation, groups; the input has 4 groups of 2 channels at most
GEOMETRIES = list(itertools.product([(3, 3), (1, 1), (2, 4)], [1, 2], [(0, 0), (1, 0), (1, 2), (3, 3)], [1, 2], [1, 4]))


@pytest.mark.parametrize("transposed", [False, True])
def test_values_are_torchs(transposed):
    rng = np.random.default_rng(0)

    def numbers(*shape):
        return torch.from_numpy(rng.standard_normal(shape))

    turned = 0
    for kernel, stride, padding, dilation, groups in GEOMETRIES:
        x = numbers(3, 8, 9, 8)
        weight = numbers(8, 12 // groups, *kernel) if transposed else numbers(12, 8 // groups, *kernel)
        how = [stride] * 2, list(padding), [dilation] * 2, transposed, [0, 0], groups
        expected = aten.convolution(x, weight, None, *how)
        found = convolutions.forward(x, weight, None, *how)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)  # sums of at most 128 products of order 1
        g = numbers(*expected.shape)
        for mask in ([True, True, True], [True, False, False], [False, True, False]):
            expected = aten.convolution_backward(g, x, weight, [12], *how, mask)
            found = convolutions.backward(g, x, weight, [12], *how, mask)
            for one, two, wanted in zip(found, expected, mask, strict=True):
                assert (one is not None) == wanted
                if wanted:
                    torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)  # of at most 216 x 12
            assert found[1] is None or found[1].is_contiguous()
        turned += convolutions._to_input(g, weight, *how) is not None
    # the geometries without steps, of 4 groups, whose padding is less than the kernel
    assert turned == (0 if transposed else 3 + 1 + 3)


def network(params, batch):
    """Convolution, tanh, pooling, twice; then a linear layer."""
    x = batch
    for weight, bias in (params[:2], params[2:4]):
        x = functional.avg_pool2d(torch.tanh(functional.conv2d(x, weight, bias, padding=1)), 2)
    return (x.flatten(1) @ params[4]).square().mean()


def grouped(params, batch):
    return functional.group_norm(functional.conv2d(batch, params[0]), 3).square().mean()


def weights(*leading):
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.standard_normal((*leading, *s))) for s in [(3, 2, 3, 3), (3,), (4, 3, 3, 3), (4,), (16, 5)]]


@pytest.mark.parametrize("loss", [network, grouped])
def test_a_traced_step(loss):
    """Convolutions of four members have the channels last; group_norm, which vmap does not run so, is traced as it is."""
    params, batch = weights(4), torch.randn(8, 2, 8, 8, dtype=torch.float64)
    gradients = vmap(grad_and_value(loss), in_dims=(0, None))

    def flat(*tensors):
        (first, *rest), value = gradients(list(tensors[:-1]), tensors[-1])
        return [first, *rest, value]

    graph = compiled._trace(flat, [*params, batch])
    for found, expected in zip(graph(*params, batch), flat(*params, batch), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert found.is_contiguous()  # as the state is that it meets in the update
    inputs = [node.args[0].meta["val"] for node in graph.graph.nodes if node.target is aten.convolution.default]
    assert inputs
    last = [x.is_contiguous(memory_format=torch.channels_last) for x in inputs]
    assert all(last) if loss is network else not any(last)


@pytest.mark.slow
def test_compiled():
    batches = list(torch.from_numpy(np.random.default_rng(1).standard_normal((5, 8, 2, 8, 8))))
    fast, eager = (
        ensemble.run(
            "sgd",
            network,
            params=weights(),
            batches=lambda seed: batches[seed:],
            lr=[0.1, 0.05],
            seeds=2,
            steps=3,
            compiled=fast,
        ).params
        for fast in (True, False)
    )
    for found, expected in zip(fast, eager, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
