"""A run saved on two ranks goes on, on any number of them, as one process that was never interrupted.

Changed between the last step and the save: the first hyperparameter, so that recalling d needs what is in the state.  float64;
1e-12 as in test_equality.
"""

import pytest

from tests.distributed import checkpoints as runs
from tests.distributed.cases import FIRST_ORDER
from tests.distributed.ranks import run


def right(found):
    assert isinstance(found, dict), found
    assert found["error"] <= 1e-12, found
    assert found["moved"] > 1e-5
    assert found["skipped"] == 2


@pytest.mark.parametrize("name", runs.CORE)
def test_saved_on_two_loaded_on_two(two_ranks, name):
    for found in two_ranks:
        assert found["saved"][name] is None, found["saved"][name]
        right(found["loaded"][name])


@pytest.mark.parametrize("name", runs.CORE)
def test_saved_on_two_loaded_on_one(two_ranks, checkpoints, name):
    right(runs.load(name, None, 0, 1, str(checkpoints)))


def test_saved_by_one_process_loaded_on_shards(two_ranks):
    for found in two_ranks:
        assert max(found["from one process"].values()) <= 1e-12


@pytest.mark.slow
def test_every_first_order_recipe(tmp_path):
    """Saved on two ranks, loaded on four; saved on four, loaded on two; both loaded on one."""
    two, four = str(tmp_path / "two"), str(tmp_path / "four")
    found = [
        *run(2, "checkpoints:matrix", FIRST_ORDER, None, two, seconds=900),
        *run(4, "checkpoints:matrix", FIRST_ORDER, two, four, seconds=900),
        *run(2, "checkpoints:matrix", FIRST_ORDER, four, None, seconds=900),
    ]
    for loaded, saved in found:
        assert not any(saved.values()), saved
        assert len(loaded) + len(saved) >= len(FIRST_ORDER)
        for result in loaded.values():
            right(result)
    for name in FIRST_ORDER:
        right(runs.load(name, None, 0, 1, two))
        right(runs.load(name, None, 0, 1, four))
