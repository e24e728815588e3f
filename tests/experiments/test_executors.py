"""Workers that are killed, two calls at once, a full disk, code that fails: nothing is lost or counted twice."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import polars as pl
import pytest

import variants
from sandbox.blocks import Rectifier, block
from sandbox.experiments import executors, store
from sandbox.experiments.compare import compare
from sandbox.experiments.store import Claims

SMALL = dict(seeds=2, tuning_seeds=1, rates=3, steps=20, evaluations=4, vectorised=False)


@block
class Deadly(Rectifier):
    """D = |B| + 1; the first process that steps it is killed."""

    path: str = ""
    text = "D = |B| + 1"

    def read(self, B):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        return B.abs() + 1


@block
class Broken(Rectifier):
    """Raises."""

    text = "D = ?"

    def read(self, B):
        raise ZeroDivisionError("a [bold]wrong[/bold] block")


@block
class Lethal(Rectifier):
    """Kills whoever steps it."""

    text = "D = ?"

    def read(self, B):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_costs_nothing(tmp_path):
    deadly = variants.get("apollo").replace(rectifier=Deadly(path=str(tmp_path / "killed")), name="deadly")
    result = compare([deadly, "sgd"], "quadratic", out=tmp_path / "out", jobs=2, **SMALL)
    assert (tmp_path / "killed").exists()
    assert not result.failures
    assert result.runs["run"].n_unique() == 2 * (3 + 2)
    assert set(result.runs.group_by("run").agg(pl.len())["len"]) == {5}
    plain = compare([deadly, "sgd"], "quadratic", out=tmp_path / "plain", **SMALL)
    drop = ["seconds_a_step"]
    keys = ["variant", "role", "lr", "seed", "step"]
    assert result.runs.drop(drop).sort(keys).equals(plain.runs.drop(drop).sort(keys))


def test_an_error_in_a_block_ends_its_variant_only(tmp_path):
    broken = variants.get("apollo").replace(rectifier=Broken(), name="b[roken]")
    result = compare(["sgd", broken], "quadratic", out=tmp_path, **SMALL)
    assert [s.name for s in result.summaries] == ["sgd"]
    (failure,) = result.failures
    assert failure.variant == "b[roken]"
    assert failure.error == "ZeroDivisionError: a [bold]wrong[/bold] block"
    assert failure.where.startswith(f"{__file__}:")
    assert "seed 10000" in failure.what
    for text in (str(result), (tmp_path / "report.html").read_text()):
        assert "[bold]wrong[/bold]" in text
    with pytest.raises(executors.Failed, match="ZeroDivisionError"):
        compare([broken], "quadratic", out=tmp_path, **SMALL)


def test_two_calls_at_once_share_a_folder(tmp_path):
    """The one that is at work holds its runs; the other waits for them, and nothing is made twice."""
    code = (
        "import sys\nfrom sandbox.experiments import executors\nfrom sandbox.experiments.compare import compare\n"
        "original, made = executors.train, []\n"
        "executors.train = lambda *a: made.append(1) or original(*a)\n"
        f"compare(['apollo', 'sgd'], 'quadratic', out={str(tmp_path)!r}, seeds=2, tuning_seeds=1, rates=3, steps=20, "
        "evaluations=4, vectorised=False)\nprint(len(made))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    made = [int(process.communicate(timeout=300)[0]) for process in both]
    assert sum(made) == 10
    assert len(list((tmp_path / "runs").glob("*.json"))) == 10


def test_claims_die_with_their_holder(tmp_path):
    mine = Claims(tmp_path)
    code = (
        "import sys\nfrom pathlib import Path\nfrom sandbox.experiments.store import Claims\n"
        f"print(Claims(Path({str(tmp_path)!r})).take('a'), flush=True)\n"
    )
    assert mine.take("a")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
    mine.close()
    waits = [sys.executable, "-c", code.replace("print(", "c = Claims; print(") + "sys.stdin.read()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout.readline() == "True\n"
        held.kill()
    again = Claims(tmp_path)
    assert again.take("a")
    again.close()


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    one = store.Store(tmp_path)
    one.add("a", {}, [{"step": 1}], [])
    original = store.Path.write_text

    def full(self, text, *args, **kwargs):
        original(self, text[: len(text) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        one.add("b", {}, [{"step": 1}], [])
    monkeypatch.undo()
    assert sorted(path.name for path in one.runs.iterdir()) == ["a.json"]
    assert store.Store(tmp_path).missing("ab") == {"b"}


def test_a_kill_in_the_middle_of_writing_leaves_no_run(tmp_path):
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom sandbox.experiments import store\n"
        f"s = store.Store(Path({str(tmp_path)!r}))\ns.add('a', {{}}, [{{'step': 1}}], [])\n"
        "store.link = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\ns.add('b', {}, [{'step': 1}], [])\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert store.Store(tmp_path).missing("ab") == {"b"}
    assert json.loads((tmp_path / "runs" / "a.json").read_text())["rows"] == [{"step": 1}]


def test_workers_that_keep_dying_are_an_error(tmp_path):
    lethal = variants.get("apollo").replace(rectifier=Lethal(), name="lethal")
    with pytest.raises(executors.BrokenExecutor, match=r"3 times in a row .*; not finished: lethal"):
        compare([lethal], "quadratic", out=tmp_path, jobs=2, **{**SMALL, "rates": 1})
