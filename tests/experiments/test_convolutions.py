"""Convolutions of many members: torch's own values, whatever the geometry."""

import itertools

import numpy as np
import pytest
import torch

from sandbox.ensemble import convolutions

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
