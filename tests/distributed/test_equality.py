"""Every first-order recipe under fully_shard takes the trajectory of one process.

float64, six steps, against one process on the whole batches; leading sizes that divide by the number of ranks, that do not, and
that leave some ranks with nothing (`cases.Network`).  The sums are the same in another order: errors of 1e-17 to 1e-14
where θ moves by 1e-4 to 1, so 1e-12 tells any mistake from rounding.
"""

import pytest

from tests.distributed.cases import CLIPS, CORE, FIRST_ORDER, LARGE
from tests.distributed.ranks import run

# What a step sends: the numbers of each collective.  A head of three by which the ranks know that they make the same step, one for
# the check for NaN, and the sums of each scope (ten tensors); maxima apart; what needs a sum's result later, behind a head of one.
SENT = {
    "apollo": [3 + 1 + 3 * 10],
    "adamw": [3 + 1],
    "coordinate-secant": [3 + 1],
    "channel-secant": [3 + 1],
    "global-secant": [3 + 1 + 3],
    "scale-invariant": [3 + 1 + 3 * 10, 10],
    "apollo-stable": [3 + 1 + 3 * 10, 1 + 2 * 10],
    "clip-global-norm": [3 + 1, 1 + 1 + 3 * 10],
    "clip-parameter-norm": [3 + 1 + 3 * 10, 1 + 10, 10],
}
# Compiled, a sum that needs no other sum goes with the first collective; eager, with the one before which it is needed.
COMPILED = {"apollo-stable": [3 + 1 + 4 * 10, 1 + 10]}


def close(results, names, tolerance=1e-12):
    assert len(results) > 1
    for found in results:
        for name in names:
            assert isinstance(found[name], dict), f"{name}: {found[name]}"
            assert found[name]["error"] <= tolerance, f"{name}: {found[name]}"
            assert found[name]["moved"] > 1e-5, f"{name}: {found[name]}"


def test_two_ranks_are_one_process(two_ranks):
    close([found["equality"] for found in two_ranks], CORE)


@pytest.mark.parametrize("name", CORE)
def test_what_a_step_sends(two_ranks, name):
    assert two_ranks[0]["equality"][name]["sent"] == SENT[name]


def test_shards_are_rounded_as_the_whole(two_ranks):
    """Computed in float64, the states differ by 1e-16 before they are rounded: hardly ever to another bfloat16."""
    for found in two_ranks:
        assert max(found["half"].values()) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("backends", [["eager", "reference"], ["compiled"]], ids=["eager", "compiled"])
def test_every_first_order_recipe(world, backends):
    """What four ranks compile is what two have compiled, which Inductor keeps on disk."""
    names = [*FIRST_ORDER, *CLIPS]
    found = run(world, "cases:table", names, backends, seconds=1800)
    for key in found[0]:
        results, compared = [each[key] for each in found], LARGE if key[1] == "large" else list(names)
        if key == ("compiled", "equality"):
            compared.remove("channel-secant")
            assert all("is not compiled for such parts" in each["channel-secant"] for each in results)
        close(results, compared)
        if key[1] == "equality" and key[0] != "reference":  # which has rounds of its own
            expected = SENT | (COMPILED if key[0] == "compiled" else {})
            assert all(results[0][name]["sent"] == expected[name] for name in compared if name in expected)


def test_large_tensors_in_parts(two_ranks):
    """Of one tensor, what the first rank has counts as large, and what the second has does not."""
    close([found["large"] for found in two_ranks], LARGE)


@pytest.mark.slow
def test_histories_of_ten_pairs():
    names = ["lbfgs", "sdlbfgs", "adaqn"]
    close(run(2, "cases:histories", names), names)
