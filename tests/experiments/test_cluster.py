"""Executors of others: what has submit, done and result alone; lost jobs; a worker with other source; dask and submitit for
real, with workers on this machine that are killed."""

import importlib
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest

import sandbox
import variants
from sandbox.experiments.compare import compare
from sandbox.experiments.runs import executors, identity
from tests.experiments.test_executors import SMALL, Deadly

DROP = ["seconds_a_step"]
KEYS = ["variant", "role", "lr", "seed", "step"]


class Job:
    """What submitit's jobs have."""

    def __init__(self, work):
        self.work, self.cancelled = work, False

    def done(self):
        return True

    def result(self):
        return self.work()

    def cancel(self):
        self.cancelled = True


class Here:
    """Does the work where it is asked; `before` is called with a job's number first."""

    def __init__(self, before=lambda n: None):
        self.before, self.jobs = before, []

    def submit(self, function, *arguments):
        n = len(self.jobs)

        def work():
            self.before(n)
            return function(*arguments)

        self.jobs.append(Job(work))
        return self.jobs[-1]


class LostError(Exception):
    """Of a job that never came back."""


def test_submit_done_and_result_are_enough(tmp_path):
    there = Here()
    result = compare(["apollo", "sgd"], "quadratic", out=tmp_path / "there", executor=there, **SMALL)
    assert len(there.jobs) == result.runs["run"].n_unique() == 10
    here = compare(["apollo", "sgd"], "quadratic", out=tmp_path / "here", **SMALL)
    assert result.runs.drop(DROP).sort(KEYS).equals(here.runs.drop(DROP).sort(KEYS))
    inspected = sandbox.inspect(["sgd"], "quadratic", steps=4, samples=2, seeds=2, executor=Here())
    alone = sandbox.inspect(["sgd"], "quadratic", steps=4, samples=2, seeds=2)
    assert inspected.frame.equals(alone.frame)
    assert inspected.vectors.equals(alone.vectors)


def test_lost_jobs_are_sent_again(tmp_path):
    """Three of them, once each; a job that is lost three times in a row, with nothing finished, is an error."""

    def lose(n):
        if n in (0, 1, 5):
            raise LostError("the job was lost")

    there = Here(lose)
    result = compare(["sgd"], "quadratic", out=tmp_path / "a", executor=there, **SMALL)
    assert result.runs["run"].n_unique() == 5
    assert len(there.jobs) == 5 + 3

    def always(n):
        raise LostError("the job was lost")

    there = Here(always)
    with pytest.raises(executors.BrokenExecutor, match="3 times in a row"):
        compare(["sgd"], "quadratic", out=tmp_path / "b", executor=there, **SMALL)
    assert len(there.jobs) == 3 * 3
    assert all(job.cancelled for job in there.jobs)


TASK = '''"""A comment."""
from sandbox import tasks
from sandbox.tasks.convex import Quadratic


class Mine(Quadratic):
    name = "mine"

    def score(self, params, batch):
        return super().score(params, batch) + {more}


task = Mine()
'''


def test_a_worker_with_other_source_refuses(tmp_path, monkeypatch):
    """Of the user's task, of a recipe's block, of this package; not where a comment differs alone."""
    (tmp_path / "away_task.py").write_text(TASK.format(more=1))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    options = {**SMALL, "rates": 1}

    def other(more):
        executors._load.cache_clear()
        (tmp_path / "away_task.py").write_text(TASK.format(more=more))

    compare(["sgd"], "away_task:task", out=tmp_path / "a", executor=Here(lambda n: other("1  # the same")), **options)
    with pytest.raises(executors.OtherSource, match="other source or data of the task"):
        compare(["sgd"], "away_task:task", out=tmp_path / "b", executor=Here(lambda n: other(2)), **options)
    assert not list((tmp_path / "b" / "runs").glob("*.json"))
    monkeypatch.delitem(sys.modules, "away_task")

    def older(n):
        executors._load.cache_clear()
        monkeypatch.setattr(identity, "package", lambda: "another")

    with pytest.raises(executors.OtherSource, match="another version of apollo-sandbox"):
        compare(["sgd"], "quadratic", out=tmp_path / "c", executor=Here(older), **options)


class Counting:
    """Passes jobs on to an executor."""

    def __init__(self, executor):
        self.executor, self.count = executor, 0

    def submit(self, *arguments):
        self.count += 1
        return self.executor.submit(*arguments)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask_loses_nothing_and_counts_nothing_twice(tmp_path):
    """Two worker processes, one killed with -9 while it works, and two calls at once in one folder."""
    distributed = pytest.importorskip("distributed")
    deadly = variants.get("apollo").replace(rectifier=Deadly(path=str(tmp_path / "killed")), name="deadly")
    told = []
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        executor = Counting(client.get_executor(pure=False))

        def call():
            options = {"out": tmp_path / "out", "executor": executor, "callbacks": [told.append], **SMALL}
            return compare([deadly, "sgd"], "quadratic", **options)

        with ThreadPoolExecutor(2) as both:
            found = [asked.result() for asked in [both.submit(call) for _ in range(2)]]
    assert (tmp_path / "killed").exists()
    assert executor.count == 10
    assert len(told) == len({(row["run"], row["step"]) for row in told}) == 4 * 5 + 6 * 2  # final runs, tuning runs
    assert len(list((tmp_path / "out" / "runs").glob("*.json"))) == 10
    alone = compare([deadly, "sgd"], "quadratic", out=tmp_path / "alone", **SMALL).runs.drop(DROP).sort(KEYS)
    for result in found:
        assert not result.failures
        assert result.runs.drop(DROP).sort(KEYS).equals(alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_submitit_on_this_machine(tmp_path):
    """A process a job, the first killed with -9."""
    submitit = pytest.importorskip("submitit")
    deadly = variants.get("apollo").replace(rectifier=Deadly(path=str(tmp_path / "killed")), name="deadly")
    executor = submitit.AutoExecutor(tmp_path / "jobs", cluster="local")
    executor.update_parameters(timeout_min=10)
    options = {**SMALL, "rates": 1, "steps": 4}
    before = signal.getsignal(signal.SIGINT)
    result = compare([deadly, "sgd"], "quadratic", out=tmp_path / "out", executor=executor, **options)
    assert signal.getsignal(signal.SIGINT) == before
    assert (tmp_path / "killed").exists()
    assert not result.failures
    assert set(result.runs.group_by("run").agg(pl.len())["len"]) == {5}  # final ones
    alone = compare([deadly, "sgd"], "quadratic", out=tmp_path / "alone", **options).runs.drop(DROP).sort(KEYS)
    assert result.runs.drop(DROP).sort(KEYS).equals(alone)
