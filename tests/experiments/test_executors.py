"""Workers that are killed, two calls at once, a full disk, code that fails: nothing is lost or counted twice."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest

import variants
from sandbox.blocks import Rectifier, block
from sandbox.experiments.compare import compare
from sandbox.experiments.runs import batch, executors, store
from sandbox.experiments.runs.store import Claims

SMALL = dict(seeds=2, tuning_seeds=1, rates=3, tuner="grid", steps=20, evaluations=4, vectorised=False)


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
    assert set(result.runs.filter(role="final").group_by("run").agg(pl.len())["len"]) == {5}
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
    assert failure.error.endswith("block Broken in slot 'rectifier': ZeroDivisionError: a [bold]wrong[/bold] block")
    assert failure.where.startswith(f"{__file__}:")
    assert "seed 10000" in failure.what
    for text in (str(result), (tmp_path / "report.html").read_text()):
        assert "[bold]wrong[/bold]" in text
    with pytest.raises(batch.Failed, match="ZeroDivisionError"):
        compare([broken], "quadratic", out=tmp_path, **SMALL)


def test_two_calls_at_once_share_a_folder(tmp_path):
    """The one that is at work holds its runs; the other waits for them, and nothing is made twice."""
    code = (
        "import sys\nfrom sandbox.experiments.runs import batch\nfrom sandbox.experiments.compare import compare\n"
        "original, made = batch.train, []\n"
        "batch.train = lambda *a: made.append(1) or original(*a)\n"
        f"compare(['apollo', 'sgd'], 'quadratic', out={str(tmp_path)!r}, seeds=2, tuning_seeds=1, rates=3, tuner='grid', steps=20, "
        "evaluations=4, vectorised=False)\nprint(len(made))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    made = [int(process.communicate(timeout=300)[0]) for process in both]
    assert sum(made) == 10
    assert len(list((tmp_path / "runs").glob("*.json"))) == 10


def test_claims_die_with_their_holder(tmp_path):
    mine = Claims(tmp_path)
    code = (
        "import sys\nfrom pathlib import Path\nfrom sandbox.experiments.runs.store import Claims\n"
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


KILLED = """
import os, signal
from pathlib import Path
from sandbox.experiments.runs import store

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def half(path, text, *arguments, **options):
    with open(path, "w") as file:
        file.write(text[: len(text) // 2])
    die()

places = [(store.Path, "write_text", die), (store.Path, "write_text", half), (store, "link", die), (store.Path, "unlink", die)]
folder = Path(FOLDER)
store.Store(folder).add("a", {}, [{"step": 1}], [])
for n, (owner, name, instead) in enumerate(places):
    child = os.fork()
    if not child:
        setattr(owner, name, instead)
        store.Store(folder).add(f"b{n}", {}, [{"step": 1}], [])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sorted(store.Store(folder).missing(["a", f"b{n}"])))
    store.Store(folder).add(f"b{n}", {}, [{"step": 2}], [])
    print(store.Store(folder).get(f"b{n}")["rows"], store.Store(folder).unreadable)
"""


def test_a_kill_at_any_moment_of_writing_leaves_a_whole_run_or_none(tmp_path):
    """Before anything is written, in the middle, before the name is given: none. Afterwards: the whole one, which stays."""
    code = KILLED.replace("FOLDER", repr(str(tmp_path)))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    for n in range(3):
        assert found[2 * n : 2 * n + 2] == [f"-9 ['b{n}']", "[{'step': 2}] []"]
    assert found[6:] == ["-9 []", "[{'step': 1}] []"]


FULL = """
import resource
from pathlib import Path
from sandbox.experiments.runs.store import Store

store = Store(Path(FOLDER))
store.add("small", {}, [{"step": 1}], [])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    store.add("large", {}, [{"step": n} for n in range(10_000)], [])
except OSError as error:
    print(type(error).__name__, error.errno)
print(sorted(path.name for path in store.runs.iterdir()), sorted(Store(store.folder).missing(["small", "large"])))
store.add("next", {}, [{"step": 1}], [])
print(sorted(Store(store.folder).missing(["small", "large", "next"])))
"""


def test_a_file_that_the_system_cuts_off_is_no_run(tmp_path):
    """The system itself refuses to write beyond 4 KiB: said, nothing left behind, and what fits is kept afterwards."""
    code = FULL.replace("FOLDER", repr(str(tmp_path)))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert found == [f"OSError {errno.EFBIG}", "['small.json'] ['large']", "['large']"]


def test_a_full_disk_ends_a_comparison_with_what_is_kept(tmp_path, monkeypatch):
    """The third run finds no room: said, and the same call makes the rest."""
    original, count = store.Store.add, iter(range(100))

    def add(self, *arguments):
        if next(count) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(store.Store, "add", add)
        with pytest.raises(OSError, match="No space left"):
            compare(["sgd"], "quadratic", out=tmp_path, **SMALL)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "runs").glob("*.json")}
    assert len(kept) == 2
    result = compare(["sgd"], "quadratic", out=tmp_path, **SMALL)
    assert result.runs["run"].n_unique() == 5
    assert all((tmp_path / "runs" / name).read_bytes() == held for name, held in kept.items())


def test_an_unreadable_run_is_named_and_the_rest_used(tmp_path):
    """A file that was cut off, one that is another run's, one that is no JSON: each is said, and made again."""
    first = compare(["sgd"], "quadratic", out=tmp_path, **SMALL)
    files = sorted((tmp_path / "runs").glob("*.json"))
    whole = [path.read_text() for path in files]
    files[0].write_text(whole[0][: len(whole[0]) // 2])
    files[1].write_text(whole[2])
    files[2].write_bytes(b"\xff\x00")
    told = []
    again = compare(["sgd"], "quadratic", out=tmp_path, callbacks=[told.append], **SMALL)
    assert {row["run"] for row in told} == {path.stem for path in files[:3]}
    assert sorted(again.unreadable) == files[:3]
    for path in files[:3]:
        assert f"Could not be read, and was made again: {path}" in str(again)
    assert again.runs.drop("seconds_a_step").equals(first.runs.drop("seconds_a_step"))


@pytest.mark.slow
def test_workers_that_keep_dying_are_an_error(tmp_path):
    lethal = variants.get("apollo").replace(rectifier=Lethal(), name="lethal")
    with pytest.raises(executors.BrokenExecutor, match=r"3 times in a row .*; not finished: lethal"):
        compare([lethal], "quadratic", out=tmp_path, jobs=2, **{**SMALL, "rates": 1})


def test_two_threads_write_one_file(tmp_path):
    """Each to a temporary file of its own: neither takes the other's away."""
    both, path = threading.Barrier(2), tmp_path / "file"

    def write(text):
        with store.atomically(path) as temporary:
            both.wait()
            temporary.write_text(text)
            both.wait()

    with ThreadPoolExecutor(2) as pool:
        for asked in [pool.submit(write, text) for text in ("a", "b")]:
            asked.result()
    assert path.read_text() in ("a", "b")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


DYING = """
import signal
from sandbox.experiments.runs.executors import Processes

def never(sent):
    signal.pause()

if __name__ == "__main__":
    executor = Processes(2)
    futures = [executor.submit(never, bytes(10**6)) for _ in range(6)]  # more than a pipe holds: somebody is sending it
    while not futures[2].running():  # the third is being sent
        pass
    for future in futures:
        future.cancel()
    pool = executor._pool
    for worker in pool._processes.values():
        worker.kill()
    manager = pool._executor_manager_thread  # which keeps the queue, and its end for reading, alive
    manager.join()  # it does not survive futures that were cancelled
    executor.close()
"""


@pytest.mark.slow
def test_the_exit_waits_for_nobody_who_sends_to_dead_workers(tmp_path):
    (tmp_path / "dying.py").write_text(DYING)
    found = subprocess.run([sys.executable, "dying.py"], cwd=tmp_path, capture_output=True, timeout=600)  # or for ever
    assert found.returncode == 0


WITHOUT = """
import multiprocessing, sys
sys.modules["fcntl"] = None  # as on Windows
multiprocessing.get_all_start_methods = lambda: ["spawn"]
real = multiprocessing.get_context
multiprocessing.get_context = lambda method=None: (_ for _ in ()).throw(ValueError(method)) if method == "forkserver" else real(method)

if __name__ == "__main__":
    import sandbox
    options = dict(seeds=2, rates=1, steps=4, evaluations=2, vectorised=False)
    two = sandbox.compare(["sgd", "adamw"], "quadratic", jobs=2, out=OUT + "/two", **options)
    one = sandbox.compare(["sgd", "adamw"], "quadratic", out=OUT + "/one", **options)
    print([s.train_loss for s in two.summaries] == [s.train_loss for s in one.summaries])
"""


def test_a_system_without_fork_servers_and_posix_locks(tmp_path):
    """Processes start anew there, and locks are those of `filelock`, which has its own for each system."""
    (tmp_path / "program.py").write_text(WITHOUT.replace("OUT", repr(str(tmp_path))))
    run = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=300)
    assert run.stdout.strip() == "True", run.stderr
