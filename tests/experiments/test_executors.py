"""Workers that are killed, two calls at once, a full disk, code that fails: nothing is lost or counted twice."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import polars as pl
import pytest

import variants
from sandbox.blocks import Rectifier, block
from sandbox.experiments.compare import compare
from sandbox.experiments.runs import batch, executors, store
from sandbox.experiments.runs.store import Claims
from sandbox.utils import processes

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


def processes_of_their_own(count=1):
    """An executor whose processes are forked from a server that has imported the package once."""
    return ProcessPoolExecutor(count, mp_context=processes.context(preload="sandbox.experiments.compare"))


def compare_and_count(folder):
    original, made = batch.train, []
    batch.train = lambda *a: made.append(1) or original(*a)
    compare(["apollo", "sgd"], "quadratic", out=folder, **SMALL)
    return len(made)


def test_two_calls_at_once_share_a_folder(tmp_path):
    """The one that is at work holds its runs; the other waits for them, and nothing is made twice."""
    with processes_of_their_own(2) as pool:
        assert sum(pool.map(compare_and_count, [tmp_path] * 2, timeout=300)) == 10
    assert len(list((tmp_path / "runs").glob("*.json"))) == 10


CLAIMS = []  # of a process that holds them until it dies


def take(folder):
    CLAIMS.append(Claims(folder))
    return CLAIMS[-1].take("a")


def test_claims_die_with_their_holder(tmp_path):
    mine = Claims(tmp_path)
    assert mine.take("a")
    with processes_of_their_own() as pool:
        assert not pool.submit(take, tmp_path).result()
        mine.close()
        assert pool.submit(take, tmp_path).result()
        again = Claims(tmp_path)
        assert not again.take("a")
        with pytest.raises(executors.BrokenExecutor):
            pool.submit(os._exit, 1).result()
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


def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)


def die_halfway(path, text, *arguments, **options):
    path.open("w").write(text[: len(text) // 2])
    die()


def add_and_die(folder, name, function, instead):
    pytest.MonkeyPatch().setattr(f"sandbox.experiments.runs.store.{function}", instead)
    store.Store(folder).add(name, {}, [{"step": 1}], [])


def test_a_kill_at_any_moment_of_writing_leaves_a_whole_run_or_none(tmp_path):
    """Before anything is written, in the middle, before the name is given: none. Afterwards: the whole one, which stays."""
    store.Store(tmp_path).add("a", {}, [{"step": 1}], [])
    context = processes.context(preload="sandbox.experiments.compare")
    moments = [("Path.write_text", die), ("Path.write_text", die_halfway), ("link", die), ("Path.unlink", die)]
    for n, moment in enumerate(moments):
        child = context.Process(target=add_and_die, args=(tmp_path, f"b{n}", *moment))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        whole = moment == moments[-1]
        assert store.Store(tmp_path).missing(["a", f"b{n}"]) == (set() if whole else {f"b{n}"})
        store.Store(tmp_path).add(f"b{n}", {}, [{"step": 2}], [])
        assert store.Store(tmp_path).get(f"b{n}")["rows"] == [{"step": 1 if whole else 2}]
        assert store.Store(tmp_path).unreadable == []


def fill(folder):
    import resource

    kept = store.Store(folder)
    kept.add("small", {}, [{"step": 1}], [])
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    with pytest.raises(OSError) as error:
        kept.add("large", {}, [{"step": n} for n in range(10_000)], [])
    files = sorted(path.name for path in kept.runs.iterdir()), sorted(store.Store(folder).missing(["small", "large"]))
    kept.add("next", {}, [{"step": 1}], [])
    return error.value.errno, files, sorted(store.Store(folder).missing(["small", "large", "next"]))


def test_a_file_that_the_system_cuts_off_is_no_run(tmp_path):
    """The system itself refuses to write beyond 4 KiB: said, nothing left behind, and what fits is kept afterwards."""
    with processes_of_their_own() as pool:
        assert pool.submit(fill, tmp_path).result() == (errno.EFBIG, (["small.json"], ["large"]), ["large"])


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
