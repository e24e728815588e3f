"""Runs that several ranks make together, against the same runs of one process."""

import math
import os
import signal
from concurrent.futures import BrokenExecutor

import polars as pl
import pytest

import variants
from sandbox.blocks import Rectifier, SameBatch, block
from sandbox.experiments.compare import compare
from sandbox.experiments.runs import batch
from sandbox.experiments.settings import Options
from tests.experiments import ranks

SMALL = dict(seeds=2, tuning_seeds=1, rates=1, steps=12, evaluations=3, vectorised=False)
KEYS = ["variant", "seed", "role", "step"]


@block
class Deadly(Rectifier):
    """Kills the process that steps it on rank 1."""

    text = "D = ?"

    def read(self, B):
        import torch.distributed as dist

        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return B.abs() + 1


def both(tmp_path, recipes, task, **options):
    made = [compare(recipes, task, out=tmp_path / str(n), ranks=n, **SMALL, **options).runs.sort(KEYS) for n in (1, 2)]
    return [rows.drop("run", "options", "seconds_a_step") for rows in made], made[1]


def close(one, two):
    """Rows are the same but for rounding: float64, sums of two shares in the place of one, over twelve steps."""
    assert one.select(pl.exclude(pl.Float64)).equals(two.select(pl.exclude(pl.Float64)))
    for name in one.select(pl.col(pl.Float64)).columns:
        a, b = (rows[name].fill_null(math.nan).to_list() for rows in (one, two))
        assert a == pytest.approx(b, rel=1e-10, nan_ok=True), name


def test_two_ranks_give_the_rows_of_one_process(tmp_path):
    """A weighted mean of shares of 6 and 5 rows; a Hessian-vector product; an optimizer from elsewhere."""
    recipes = ["apollo", "adahessian", "torch.optim:NAdam"]
    (one, two), kept = both(tmp_path, recipes, ranks.task(), probes=["secant_residual"], every=4)
    close(one, two)
    assert one["train_loss"].n_unique() == 2 + 3 * 2 * 3  # the starts of both seeds, and what follows
    assert all('"ranks": 2' in text for text in kept["options"])


def test_magnitudes_over_a_kernel_are_those_of_the_mean_over_ranks(tmp_path):
    (one, two), _ = both(tmp_path, ["adahessian-spatial"], ranks.task(ranks.convolutional))
    close(one, two)


def test_accumulated_batches_and_time_limits(tmp_path):
    (one, two), _ = both(tmp_path, ["apollo"], ranks.task(), accumulate=3, time_limit=1e6)
    close(one, two)


@pytest.mark.slow
def test_through_other_processes(tmp_path):
    """The same with a second gradient per step."""
    again = variants.get("apollo").replace(pairs=SameBatch(), name="again")
    (one, two), _ = both(tmp_path, [again, "adamw"], ranks.task(), jobs=2)
    close(one, two)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (dict(model=ranks.normed), "changes its network's buffers"),
        (dict(model=ranks.unkept), "looks at whole batches"),
        (dict(model=ranks.dropping), "draws random numbers"),
        (dict(loss=ranks.batchwise), "its loss is no mean over rows"),
        (dict(batch_size=1), "a batch of 1 rows is cut into 1, 0"),
        (dict(loss=ranks.failing), "a wrong share"),
    ],
)
def test_what_ranks_cannot_share_is_refused(tmp_path, task, why):
    with pytest.raises(ValueError, match=f"ranks=2: .*{why}"):
        compare(["apollo"], ranks.task(**task), out=tmp_path, ranks=2, **SMALL)
    assert not list(tmp_path.iterdir())


def test_tasks_without_rows_drawn_labels_and_devices_are_refused(tmp_path):
    with pytest.raises(ValueError, match="ranks=2: task 'quadratic'"):
        compare(["apollo"], "quadratic", out=tmp_path, ranks=2, **SMALL)
    with pytest.raises(ValueError, match="ranks=2: sophia-g draws labels or"):
        compare(["sophia-g"], ranks.task(), out=tmp_path, ranks=2, **SMALL)
    with pytest.raises(ValueError, match="train on the CPU"):
        Options(ranks=2, device="cuda")
    with pytest.raises(ValueError, match="ranks must be a whole number of at least 1"):
        Options(ranks=0)


def test_a_rank_that_fails_or_dies_ends_the_others(tmp_path, monkeypatch):
    """The check is put out of the way: it would find what fails."""
    monkeypatch.setattr("sandbox.experiments.runs.shares.check", lambda task, size: None)
    with pytest.raises(batch.Failed) as error:
        compare(["apollo"], ranks.task(loss=ranks.failing), out=tmp_path / "failing", ranks=2, **SMALL)
    (failure,) = error.value.failures
    assert failure.error == "ZeroDivisionError: a wrong share"
    assert failure.where.startswith(f"{ranks.__file__}:")
    with pytest.raises(batch.Failed, match="have come to different rows"):
        compare(["apollo"], ranks.task(model=ranks.unseeded), out=tmp_path / "unseeded", ranks=2, **SMALL)
    deadly = variants.get("apollo").replace(rectifier=Deadly(), name="deadly")
    with pytest.raises(BrokenExecutor, match=r"rank 1 of 2 died \(exit code -9\)"):
        compare([deadly], ranks.task(), out=tmp_path / "deadly", ranks=2, backend="reference", **SMALL)


def test_a_run_that_diverges_ends_on_all_ranks(tmp_path):
    (one, two), _ = both(tmp_path, [variants.get("sgd").replace(lr=1e100, name="wild")], ranks.task())
    assert one["diverged"].all()
    close(one, two)
    assert math.isinf(one["train_loss"].to_list()[-1])
