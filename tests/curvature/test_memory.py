"""Chunks of a diagonal fit the memory that they are given."""

import subprocess
import sys

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from sandbox import curvature
from sandbox.utils.memory import chunk, peak
from tests.curvature.problem import N, batch, loss, params


def test_the_meter_counts_what_lives_at_once():
    """Ten tensors of 8,000 bytes one after the other hold two at once, in a list ten; a view holds nothing more."""

    def in_turn():
        x = torch.ones(1000, dtype=torch.float64)
        for _ in range(9):
            x = x + 1
            x.view(10, 100)

    assert peak(in_turn) == 16_000
    assert peak(lambda: [torch.ones(1000, dtype=torch.float64) for _ in range(10)]) == 80_000


@given(memory=st.integers(30_000, 300_000))
@settings(max_examples=20, deadline=None)
def test_a_chunk_fits_its_memory(memory):
    operator = curvature.Hessian(loss, params(), batch())

    def run(k):
        return operator.rows(torch.ones(k, N, dtype=torch.float64))

    k = chunk(run, memory, 10**6, 8 * N)
    assert peak(lambda: run(k)) <= memory  # every vector takes the same here, so the estimate is exact
    assert peak(lambda: run(2 * k)) > memory


BIG = """
import resource, torch
from torch.nn import functional
from sandbox import curvature
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(784, 126), torch.nn.Tanh(), torch.nn.Linear(126, 10)).double()
batch = torch.randn(2, 784).double(), torch.tensor([3, 7])
loss = lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1])
assert sum(x.numel() for x in model.parameters()) == 100_180
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = curvature.diagonal(loss, model, batch, memory=10**8)
X, p = batch[0], torch.softmax(model(batch[0]), 1).detach()
a = torch.tanh(model[0](X)).detach()
exact = ((p - p * p).T @ (a * a)) / 2  # the last layer's diagonal in closed form: p_i (1 - p_i) a_j², mean over rows
assert (found.values["2.weight"] - exact).abs().max() <= 1e-10 * exact.abs().max()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_hundred_thousand_parameters_fit_in_two_gigabytes():
    """With `memory` at 1e8 bytes; ru_maxrss is in KiB on Linux.  100,180 products take about two minutes."""
    done = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 2 * 2**30
