"""What is wrong on one rank is wrong on all: they raise together, nothing has changed, and nobody waits for anybody."""

import pytest

import variants
from tests.distributed.cases import FIRST_ORDER, SECOND_ORDER
from tests.distributed.ranks import run


def stopped(found):
    error, skipped, same = found["raise"]
    assert error[0] == "FloatingPointError"
    assert "'inner.weight'" in error[1]
    assert (skipped, same) == (0, True)
    assert found["skip"] == (None, 1, True)


def test_nan_on_one_rank(two_ranks):
    for found in two_ranks:
        stopped(found["not finite"])


@pytest.mark.slow
def test_nan_on_one_rank_compiled():
    for found in run(2, "agreement:not_finite_compiled"):
        stopped(found)


def test_one_rank_whose_time_is_over_ends_the_run_on_all(two_ranks):
    assert [found["clocks"] for found in two_ranks] == [(True, False)] * 2


def test_a_rank_that_differs_stops_all(two_ranks):
    (first, error), (second, again) = (found["differing"] for found in two_ranks)
    assert "ranks 0 and 1 have other rates, hyperparameters or step counts: 0.001 and 0.002" in first["rate"][1]
    assert first["rate"] == second["rate"]
    assert second["error"][0] == "ValueError"
    assert "sigma must lie in (0, inf), got -1" in second["error"][1]
    assert first["error"][0] == "RuntimeError"
    assert "rank 1 failed: ValueError: " in first["error"][1]
    message = "ranks 0 and 1 do not make the same step: 'norm.weight': a gradient on rank 0, none on rank 1"
    assert message in first["gradient"][1]
    assert first["gradient"] == second["gradient"]
    # and afterwards they train on as if nothing had been: rounding, see test_equality
    assert max(error, again) <= 1e-12


def test_lives_of_shards(two_ranks):
    """float64 against one process; 1e-12 as in test_equality."""
    for found in two_ranks:
        assert found["late gradients"] <= 1e-12
        assert found["maximized"] <= 1e-12
        assert found["exchanged"][0] <= 1e-12


def test_parts_beside_replicas(two_ranks):
    """float64, four steps; what several ranks hold counts once in a norm and in a sum over all tensors."""
    for found in two_ranks:
        assert len(found["mixed"]) == 3
        assert max(found["mixed"].values()) <= 1e-12


def test_states_are_as_small_as_shards(two_ranks):
    assert two_ranks[0]["exchanged"][1] == {"moment.m": (1, 8), "curvature.B": (1, 8)}
    assert two_ranks[1]["exchanged"][1] == {"moment.m": (0, 8), "curvature.B": (0, 8)}


def test_what_is_not_right_is_refused(two_ranks):
    for found in two_ranks:
        refused = found["refused"]
        assert "'scripted' has no sums over several ranks" in refused["scripted"][1]
        assert "Hessian-vector products, which no rank can form" in refused["second order"][1]
        assert "Watch sees whole tensors" in refused["watch"][1]
        for what in ("occupancy", "product", "curvature"):
            kind, text = refused[what]
            assert kind == "TypeError", what
            assert "needs whole tensors" in text
        for name in ("sophia-g", "kfac"):
            assert "cannot be trained by replicas" in refused[name, "replicas"][1]


def test_what_is_in_no_table_is_refused(two_ranks):
    """Histories that take two gradients per step, and recipes of matrices; of the others each is in a table of equality."""
    others = [name for name in variants.names() if name not in FIRST_ORDER and name not in SECOND_ORDER]
    assert {"olbfgs", "res", "sophia-g", "muon"} <= set(others)
    for found in two_ranks:
        for name in others:
            kind, text = found["refused"][name]
            assert kind == "ValueError", name
            assert (
                "needs whole matrices" if variants.get(name).analysis.own_layout else "needs two gradients per step"
            ) in text
