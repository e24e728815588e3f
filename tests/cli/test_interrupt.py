"""Ctrl-C at any moment of a command: what is kept is said, and the exit code is 130.

No moment is a matter of time: the process under test sends itself the signal at the place that the test names.
"""

import importlib
import os
import signal
import subprocess
import sys
from concurrent import futures

import polars as pl
import pytest
import torch

from sandbox import cli
from sandbox.experiments.runs import executors
from sandbox.utils import interrupts

SMALL = ["--task", "logistic-breast-cancer", "--steps", "20"]
COMPARE = ["compare", "apollo", "sgd", *SMALL, "--rates", "1", "--seeds", "2", "--jobs", "1"]
SWEEP = ["sweep", "sgd", "--vary", "lr=0.1,0.2", *SMALL]
CURVATURE = ["curvature", "apollo", "sgd", *SMALL, "--samples", "4", "--seeds", "1", "--jobs", "1"]
REGRET = ["check", "regret", "--steps", "20"]
NO_RUNS = "Interrupted before any runs were finished; nothing is kept."
NO_BLOCKS = "Interrupted before any blocks of members were finished; nothing is kept."
NOTHING = "Interrupted before anything was written."


@pytest.fixture(autouse=True)
def heard():
    """A background job of a shell ignores the interrupt, and so would what it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_at(monkeypatch, place, nth):
    """Sends SIGINT when the function "module:name" is called for the nth time."""
    module, _, name = place.partition(":")
    owner = importlib.import_module(module)
    *path, name = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    called, count = getattr(owner, name), iter(range(1, 1000))

    def interrupted(*arguments, **options):
        if next(count) == nth:
            os.kill(os.getpid(), signal.SIGINT)
        return called(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize(
    ("command", "place", "nth", "says", "files"),
    [
        (COMPARE, "sandbox.tasks:get", 1, NO_RUNS, set()),
        (
            COMPARE,
            "sandbox.experiments.runs.store:Store.add",
            2,
            "Interrupted. Finished runs are kept in {out}/",
            {"results.parquet"},
        ),
        (
            COMPARE,
            "sandbox.experiments.compare:write",
            1,
            "Interrupted. Finished runs are kept in {out}/",
            {"results.parquet"},
        ),
        (SWEEP, "sandbox.tasks:get", 1, NO_BLOCKS, set()),
        (SWEEP, "sandbox.ensemble:run", 1, NO_BLOCKS, set()),
        (SWEEP, "torch._functorch.vmap:_vmap_decrement_nesting", 1, NO_BLOCKS, set()),
        (SWEEP, "torch._functorch.vmap:_vmap_decrement_nesting", 9, NO_BLOCKS, set()),
        (CURVATURE, "torch._functorch.vmap:_vmap_decrement_nesting", 3, NO_RUNS, set()),
        (CURVATURE, "sandbox.tasks:get", 1, NO_RUNS, set()),
        (CURVATURE, "torch.optim:Optimizer.__init__", 1, NO_RUNS, set()),
        (CURVATURE, "sandbox.curvature:diagonal", 6, "Interrupted. Finished runs are kept in {out}/", {"probes.parquet"}),
        (REGRET, "theory_checks.claims.regret:check", 1, NOTHING, set()),
        (
            REGRET,
            "matplotlib.figure:Figure.savefig",
            1,
            "Interrupted. Whatever was written to {out}/ is kept.",
            {"regret-apollo"},
        ),
    ],
)
def test_while_it_works(command, place, nth, says, files, tmp_path, monkeypatch, capsys):
    interrupt_at(monkeypatch, place, nth)
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["apollo-sandbox", *command, "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        cli.run()
    assert ended.value.code == 130
    assert says.format(out=out) in capsys.readouterr().out
    names = [path.name for path in out.glob("*")]
    assert all(any(name.startswith(file) for name in names) for file in files)
    assert not [name for name in names if name.endswith(".tmp")]
    torch.zeros(1).requires_grad_()  # raises inside of a transformation of torch.func: none was left behind


@pytest.mark.parametrize("place", ["sandbox.ensemble:run", "sandbox.experiments.selection.statistics:paired"])
def test_while_it_calibrates(place, monkeypatch, capsys):
    interrupt_at(monkeypatch, place, 1)
    assert cli.main(["calibrate", "sgd", "--comparisons", "4", "--pairs", "2", "--steps", "2"]) == 130
    assert "Interrupted; nothing is kept." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "nth", "says"),
    [
        ("sandbox.tasks:get", 1, "Interrupted before any runs were finished; nothing is kept."),
        ("sandbox.experiments.runs.store:Store.add", 2, "Interrupted. Finished runs are kept in {out}/"),
    ],
)
def test_while_it_studies(place, nth, says, tmp_path, monkeypatch, capsys):
    interrupt_at(monkeypatch, place, nth)
    assert cli.main(["study", "run", "F12", "--out", str(tmp_path)]) == 130
    assert says.format(out=tmp_path) in capsys.readouterr().out


WHILE_IMPORTING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
module = sys.argv.pop(1)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from sandbox import cli
cli.run()
"""


@pytest.mark.parametrize(
    ("command", "module", "says"), [(["--help"], "tyro", "interrupted"), ([*COMPARE, "--out", "out"], "numpy", NO_RUNS)]
)
def test_while_it_imports(command, module, says, tmp_path):
    at = [sys.executable, "-c", WHILE_IMPORTING, module, *command]
    found = subprocess.run(at, capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 130, found.stderr
    assert says in found.stdout + found.stderr
    assert "Traceback" not in found.stderr
    assert not list(tmp_path.iterdir())


def test_an_interrupted_comparison_continues(tmp_path, monkeypatch):
    command = [*COMPARE, "--out", str(tmp_path)]
    with monkeypatch.context() as patched:
        interrupt_at(patched, "sandbox.experiments.runs.store:Store.add", 3)
        assert cli.main(command) == 130
    before = pl.read_parquet(tmp_path / "results.parquet")["run"].unique()
    assert cli.main(command) == 0
    after = pl.read_parquet(tmp_path / "results.parquet")["run"].unique()
    assert (len(before), len(after)) == (2, 4)
    assert set(before) < set(after)


def test_an_interrupt_is_postponed_and_not_lost():
    reached = False
    with pytest.raises(KeyboardInterrupt), interrupts.postponed():
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
    assert reached
    with interrupts.postponed():
        pass  # the one before is forgotten


def test_the_outermost_block_ends_with_the_interrupt():
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts.postponed():
        with interrupts.postponed():
            os.kill(os.getpid(), signal.SIGINT)
        reached.append("after the inner block")
    assert reached


def test_a_handler_of_ones_own_hears_what_was_postponed():
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    with interrupts.postponed():
        os.kill(os.getpid(), signal.SIGINT)
        assert heard == []
    assert heard == [signal.SIGINT]


def test_a_wait_for_workers_leaves_no_lock_behind(monkeypatch):
    """One that was taken for ever by this thread would let no process end."""
    future, take = futures.Future(), futures._base._AcquireFutures.__enter__

    def taken(locks):
        take(locks)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(futures._base._AcquireFutures, "__enter__", taken)
    with pytest.raises(KeyboardInterrupt):
        next(executors._gather({future: None}, lambda: None))
    with futures.ThreadPoolExecutor(1) as other:
        assert other.submit(future._condition.acquire, blocking=False).result()


def test_an_ignored_interrupt_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts.postponed():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
