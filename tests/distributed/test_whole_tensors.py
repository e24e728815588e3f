"""Replicas with second-order recipes, and tensors dealt out by ZeroRedundancyOptimizer, against one process.

float64, six steps; sums of two halves where one process has one sum, so 1e-12 tells any mistake from rounding.  AdaHessian moves
by 1 to 10 in six steps and divides by √v from 1e-4 on: its errors are the largest.
"""

import pytest

from tests.distributed.cases import SECOND_ORDER


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_replicas_average_gradients_and_products(two_ranks, name):
    for found in two_ranks:
        result = found["replicas"][name]
        assert result["alike"]
        assert result["error"] <= 1e-11
        assert result["moved"] > 1e-5


def test_replicas_that_know_of_no_group_are_refused(two_ranks):
    for found in two_ranks:
        kind, text = found["replicas"]["refused"]
        assert kind == "RuntimeError"
        assert "process_group=torch.distributed.group.WORLD" in text


@pytest.mark.parametrize("name", ["apollo", "global-secant", "clip-global-norm", "channel-secant"])
def test_under_zero_redundancy_optimizer(two_ranks, name):
    for found in two_ranks:
        assert found["zero"][name]["error"] <= 1e-12, found["zero"][name]
        assert found["zero"][name]["moved"] > 1e-5


def test_what_is_refused_under_zero_redundancy_optimizer(two_ranks):
    for found in two_ranks:
        assert "needs Hessian-vector products" in found["zero"]["second order"][1]
        assert "'scripted' has no sums over several ranks" in found["zero"]["scripted"][1]
