"""A rank that dies: the others say which, and the run goes on from its last checkpoint as if nothing had been."""

import pytest

from tests.distributed.ranks import run


@pytest.mark.slow
def test_a_rank_is_killed_and_all_resume(tmp_path):
    """Killed in step 5 of 8, with checkpoints after each second one; float64, 1e-12 as in test_equality."""
    survivor, killed = run(2, "lives:training", str(tmp_path), "scale-invariant", 4)
    assert killed is None
    assert "step 5: rank 1 did not take part, or stopped in the middle" in survivor
    for found in run(2, "lives:training", str(tmp_path), "scale-invariant", None):
        assert found["started"] == 4
        assert found["error"] <= 1e-12
