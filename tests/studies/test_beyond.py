"""The search for a better recipe."""

from __future__ import annotations

import polars as pl
import pytest

from sandbox.studies import beyond


def rows(**losses):
    """Final rows: task__variant -> test losses by seed."""
    made = [
        {
            "task": name.split("__")[0],
            "variant": name.split("__")[1],
            "role": "final",
            "seed": seed,
            "step": 9,
            "steps": 9,
            "test_loss": v,
        }
        for name, values in losses.items()
        for seed, v in enumerate(values)
    ]
    return pl.DataFrame(made)


LOW, HIGH = [1.0, 1.1, 1.2], [2.0, 2.12, 2.21]


@pytest.mark.parametrize(("second", "better"), [(HIGH, True), (LOW, False), ([0.5, 0.6, 0.71], False)])
def test_it_is_better_only_where_it_is_everywhere(second, better):
    table = rows(a__found=LOW, a__apollo=HIGH, a__adamw=second, b__found=LOW, b__apollo=HIGH, b__adamw=HIGH)
    (_, _, body), found = beyond.differences(table)
    assert found == better
    assert [row[:2] for row in body] == [["a", "apollo"], ["a", "adamw"], ["b", "apollo"], ["b", "adamw"]]
    assert body[0][-1] == "found"


@pytest.mark.slow
def test_a_small_search_goes_through_all_three_tasks(tmp_path):
    recipe, first = beyond.search(tmp_path, trials=2, seeds=2)
    table = pl.concat([first, *beyond.held_out(recipe, tmp_path, seeds=2, rates=1)], how="diagonal")
    assert set(table["task"]) == {"digits-mlp", "lenet-fashion", "lstm-speeches"}
    assert set(table["variant"]) == {"found", "apollo", "adamw"}
    assert "Beyond the paper" in beyond.text(recipe, table)
