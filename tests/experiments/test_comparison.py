"""The main job: fair, resumable, robust to divergence; also with blocks from outside the package."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import polars as pl
import pytest
import torch

import sandbox
import variants
from sandbox import tasks
from sandbox.blocks import Number, Rectifier, block, number
from sandbox.experiments import compare as comparison
from sandbox.experiments import run, unit
from sandbox.experiments.compare import compare
from sandbox.experiments.methods import Ours
from sandbox.experiments.result import Chosen
from sandbox.experiments.search import Trial, Tuner
from sandbox.experiments.settings import Options, Run
from sandbox.experiments.store import Store
from sandbox.forms import toml
from tests.outside_blocks import Halfway, MeanAbsolute


def settings(**changes):
    return Run(**{**dict(task="", method="", lr=0.01, seed=0, role="final", steps=10, at=(10,)), **changes})


SMALL = dict(seeds=2, tuning_seeds=1, rates=3, steps=20, evaluations=4, vectorised=False)


def test_compare_is_what_it_says(tmp_path):
    """Every number of the summary is recomputed by hand from separate runs."""
    result = compare(["adamw", "sgd"], "logistic-breast-cancer", seeds=3, tuning_seeds=2, rates=3, steps=30, out=tmp_path)
    task = tasks.get("logistic-breast-cancer")
    ends = {}
    for summary in result.summaries:
        recipe = variants.get(summary.name)
        grid = result.plan.grid(recipe)
        assert grid == pytest.approx([recipe.lr * 10**e for e in (-0.5, 0, 0.5)], rel=1e-5)

        def by_hand(lr, seed, recipe=recipe):
            params = {k: v.clone().requires_grad_() for k, v in task.init(seed).items()}
            optimizer = sandbox.Optimizer(params.items(), recipe, lr=lr)
            schedule, batches = sandbox.schedules.warmup(optimizer, 3), task.batches(seed)
            for _ in range(30):
                optimizer.zero_grad()
                task.loss(params, next(batches)).backward()
                optimizer.step()
                schedule.step()
            return [task.evaluate(params, split) for split in ("train", "validation", "test")]

        with run.threads():
            validation = {lr: np.mean([by_hand(lr, seed)[1][0] for seed in (10_000, 10_001)]) for lr in grid}
            finals = [by_hand(summary.lr, seed) for seed in range(3)]
        assert summary.lr == min(validation, key=validation.get)
        assert summary.on_edge == (summary.lr in (grid[0], grid[-1]))
        assert summary.train_loss == pytest.approx(np.mean([f[0][0] for f in finals]), rel=1e-6)
        assert summary.test_metric == pytest.approx(np.mean([f[2][1] for f in finals]), rel=1e-6)
        ends[summary.name] = finals
    difference = np.mean([b[0][0] - a[0][0] for a, b in zip(ends["adamw"], ends["sgd"], strict=True)])
    assert result.summaries[1].train_difference.mean == pytest.approx(difference, rel=1e-5)
    assert result.summaries[0].train_difference is None
    # the test split was looked at once a final run, at its end, and never in tuning
    scored = result.runs.filter(pl.col("test_metric").is_not_null())
    assert set(scored["role"]) == {"final"}
    assert set(scored["step"]) == {30}
    assert len(scored) == 6


def test_files_and_resuming(tmp_path, monkeypatch):
    done = []
    original = unit.train
    monkeypatch.setattr(unit, "train", lambda *a: done.append(a[2]) or original(*a))
    first = compare(["apollo", "sgd"], "quadratic", out=tmp_path, **SMALL)
    assert len(done) == 2 * (3 + 2)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert toml.loads(manifest["recipes"]["apollo"]) == variants.get("apollo")
    assert manifest["seeds"] == {"final": [0, 1], "tuning": [10_000]}
    assert manifest["chosen_rates"]["sgd"] == first.summaries[1].lr
    assert {"torch", "numpy"} <= set(manifest["environment"]["versions"])
    assert manifest["environment"]["machine"]["processor"]
    for name in ("curves.png", "rates.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    assert "| apollo |" in (tmp_path / "table.md").read_text()
    again = compare(["apollo", "sgd"], "quadratic", out=tmp_path, **SMALL)
    assert len(done) == 10
    assert str(again) == str(first)
    compare(["apollo", "sgd", "adam"], "quadratic", out=tmp_path, **{**SMALL, "seeds": 3})
    assert len(done) == 10 + 5 + 3  # adam is new, the others get one seed more
    assert not list(tmp_path.glob(".*tmp"))
    frame = pl.read_parquet(tmp_path / "results.parquet")
    assert frame.group_by("role").agg((pl.len() / pl.col("run").n_unique()).alias("rows")).sort("role")["rows"].to_list() == [
        5,
        2,
    ]


def test_an_interrupted_run_loses_only_itself(tmp_path, monkeypatch):
    original, done = unit.train, []

    def interrupted(*arguments):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(unit, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(["apollo", "sgd"], "quadratic", out=tmp_path, **SMALL)
    assert pl.read_parquet(tmp_path / "results.parquet")["run"].n_unique() == 3
    monkeypatch.setattr(unit, "train", lambda *a: done.append(a) or original(*a))
    compare(["apollo", "sgd"], "quadratic", out=tmp_path, **SMALL)
    assert len(done) == 10


def test_divergence_is_an_outcome(tmp_path):
    """A rate grid far above what is stable: infinite losses, counted, in the table and the pictures, no crash."""
    wild = variants.get("sgd").replace(lr=1e4, name="wild")
    huge = variants.get("sgd").replace(lr=1e30, name="huge")
    result = compare(["sgd", wild, huge], "digits-mlp", out=tmp_path, **SMALL)
    calm, *others = result.summaries
    assert calm.diverged == 0
    for summary in others:
        assert summary.diverged == 2
        assert summary.train_loss == math.inf
        assert summary.test_metric == -math.inf
        assert summary.train_difference.mean is None
    assert "some infinite" in str(result)
    assert "2 of 2" in str(result)
    lost = result.runs.filter((pl.col("variant") == "huge") & (pl.col("step") > 0) & (pl.col("role") == "final"))
    assert set(lost["train_loss"]) == {math.inf}
    assert len(lost) == 2 * 4
    assert (tmp_path / "curves.png").exists()


def test_a_block_from_outside_goes_everywhere(tmp_path):
    """Ten lines outside the package: through Optimizer, TOML, text and compare."""
    recipe = variants.get("apollo").replace(rectifier=Halfway(sigma=0.02), name="outside")
    assert "D = |B| + σ" in str(recipe)
    other = recipe.replace(curvature=MeanAbsolute(), name="outside-curvature")
    file = tmp_path / "outside.toml"
    file.write_text(toml.dumps(recipe))
    model = torch.nn.Linear(3, 2)
    optimizer = sandbox.Optimizer(model.parameters(), str(file), lr=0.1)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    m = optimizer.state[model.weight]["moment.m"]
    assert torch.equal(m, torch.ones(2, 3))
    result = compare([str(file), other], "quadratic", out=tmp_path / "results", **SMALL)
    assert [s.name for s in result.summaries] == ["outside", "outside-curvature"]
    assert all(math.isfinite(s.train_loss) for s in result.summaries)


def test_two_processes_give_the_same_numbers(tmp_path):
    one = compare(["apollo", "sgd"], "digits-mlp", out=tmp_path / "one", **SMALL)
    two = compare(["apollo", "sgd"], "digits-mlp", out=tmp_path / "two", jobs=2, **SMALL)
    for a, b in zip(one.summaries, two.summaries, strict=True):
        assert (a.lr, a.train_loss, a.test_metric, a.floor_occupancy) == (b.lr, b.train_loss, b.test_metric, b.floor_occupancy)


def test_few_seeds_are_exploratory_and_edges_are_flagged(tmp_path):
    slow = variants.get("adamw").replace(lr=1e-6, name="slow")
    result = compare(["adamw", slow], "logistic-breast-cancer", out=tmp_path, **SMALL)
    assert result.exploratory
    assert "Exploratory: 2 seeds are too few" in str(result)
    assert result.summaries[1].on_edge
    assert "lies on the edge of its grid" in str(result)
    assert "(edge)" in result._repr_markdown_()


def test_floor_occupancy_is_the_share_of_small_curvatures():
    params = [torch.zeros(4, requires_grad=True)]
    optimizer = sandbox.Optimizer(params, "apollo")
    assert sandbox.probes.floor_occupancy(optimizer) is None  # no step yet
    params[0].grad = torch.ones(4)
    optimizer.step()
    optimizer.state[params[0]]["curvature.B"].copy_(torch.tensor([0.0, 0.5, -0.5, 0.005]))
    assert sandbox.probes.floor_occupancy(optimizer) == 0.5
    plain = sandbox.Optimizer([torch.zeros(2, requires_grad=True)], "adam")
    assert sandbox.probes.floor_occupancy(plain) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"recipes": []}, "at least one recipe"),
        ({"recipes": ["apolo"]}, "did you mean 'apollo'"),
        ({"recipes": ["apollo", "apollo"]}, "two recipes are called 'apollo'"),
        ({"task": "digits"}, "unknown task 'digits'; did you mean 'digits-"),
        ({"seeds": 1}, "seeds must be at least 2, got 1"),
        ({"rates": 0}, "rates must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"warmup": 21}, "warmup must lie in [0, 20]"),
        ({"spacing": 1.0}, "spacing must lie in (1, 1000]"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"backend": "eagr"}, "did you mean 'eager'"),
    ],
)
def test_bad_arguments(change, says, tmp_path):
    arguments = {"recipes": ["apollo"], "task": "quadratic", **SMALL, "out": tmp_path, **change}
    with pytest.raises(ValueError) as caught:
        compare(**arguments)
    assert says in str(caught.value)


def test_a_foreign_file_is_not_overwritten(tmp_path):
    (tmp_path / "results.parquet").write_text("something else")
    with pytest.raises(ValueError, match="cannot be read as results"):
        compare(["sgd"], "quadratic", out=tmp_path, **SMALL)
    assert (tmp_path / "results.parquet").read_text() == "something else"


WAITS = """
import multiprocessing, os
from sandbox.recipe import Recipe
from sandbox.blocks import EMA

def never(t):
    if multiprocessing.parent_process():
        os.open(os.environ["NOBODY_WRITES"], os.O_RDONLY)  # blocks for ever
    return 0.9

def recipe():
    return Recipe(name="waits", moment=EMA(beta=never, bias_correction=False))
"""


def test_ctrl_c_in_a_terminal(tmp_path):
    """SIGINT to the command and its workers, one of which is at work and never ends: exit code 130, finished runs are kept."""
    (tmp_path / "waiting.py").write_text(WAITS)
    os.mkfifo(tmp_path / "fifo")
    small = ["--task", "quadratic", "--steps", "20", "--rates", "1", "--seeds", "2", "--jobs", "2", "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sandbox", "compare", "sgd", "waiting:recipe", *small],
        cwd=tmp_path,
        env={**os.environ, "NOBODY_WRITES": str(tmp_path / "fifo")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        text=True,
    )
    guard = threading.Timer(900, process.kill)  # a command that does not hear the interrupt fails the test; it does not hang
    guard.start()
    said = list(itertools.takewhile(lambda line: "2 of 4 runs" not in line, process.stderr))  # both of sgd's
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    guard.cancel()
    assert process.returncode == 130, [*said, err]
    assert "Interrupted. Finished runs are kept in out/" in out
    assert "Traceback" not in err
    assert len([*(tmp_path / "out/runs").glob("*.json")]) == 2


def test_a_run_is_kept_once(tmp_path):
    """By whoever was first; a run's file that cannot be read is named, and the run made again."""
    one, two = Store(tmp_path), Store(tmp_path)
    one.add("a", {}, [{"step": 1}], [])
    two.add("b", {}, [{"step": 1}], [])
    one.add("b", {}, [{"step": 2}], [])
    assert [Store(tmp_path).get(k)["rows"] for k in "ab"] == [[{"step": 1}]] * 2
    assert Store(tmp_path).missing("abc") == {"c"}
    (tmp_path / "runs" / "a.json").write_text('{"run": "a", "rows": [')
    other = Store(tmp_path)
    assert other.missing("ab") == {"a"}
    assert [path.name for path in other.unreadable] == ["a.json"]
    other.add("a", {}, [{"step": 3}], [])
    assert Store(tmp_path).get("a")["rows"] == [{"step": 3}]


# -- found in review -------------------------------------------------------------------------------------------------


def test_another_task_or_another_code_is_another_run(tmp_path, monkeypatch):
    """Options of a task, and the source of a block, belong to what a result depends on."""
    sgd = variants.get("sgd").replace(lr=0.01, name="sgd")
    same = {**SMALL, "rates": 1, "out": tmp_path}
    calm = compare([sgd], tasks.get("quadratic", noise=0.0), **same).summaries[0].train_loss
    wild = compare([sgd], tasks.get("quadratic", noise=5.0), **same).summaries[0].train_loss
    assert wild > 2 * calm
    module = tmp_path / "edited_block.py"
    text = (
        "from sandbox.blocks import Number, Rectifier, block, number\n"
        "from sandbox.recipe import Recipe\n\n"
        "@block\nclass Edited(Rectifier):\n    '''D = |B| + σ.'''\n    sigma: Number = number(default=0.1, range='(0, inf)')\n\n"
        "    def read(self, B):\n        return B.abs() + {factor} * self.sigma\n\n"
        "def recipe():\n    return Recipe(name='edited', rectifier=Edited())\n"
    )
    losses = []
    for factor in (1, 10):
        module.write_text(text.format(factor=factor))
        code = (
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom sandbox.experiments.compare import compare\n"
            f"print(compare(['edited_block:recipe'], 'quadratic', out={str(tmp_path / 'edited')!r}, seeds=2, rates=1, steps=20)"
            ".summaries[0].train_loss)"
        )
        found = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=True)
        losses.append(float(found.stdout))
    assert losses[0] != losses[1]


def test_a_rate_that_the_decay_does_not_allow_is_lost_not_an_end(tmp_path):
    from sandbox.blocks import Decoupled

    heavy = variants.get("apollo").replace(decay=Decoupled(weight_decay=50.0), name="heavy")
    result = compare([heavy], "quadratic", out=tmp_path, **SMALL)  # 50 × 0.0316 > 1
    assert result.summaries[0].lr < 0.02
    lost = result.runs.filter(pl.col("lr") * 50 >= 1)
    assert len(lost)
    assert lost["diverged"].all()


def rows_of(plan, losses):
    """A results frame as `compare` makes it, from {(role, lr, seed): (train losses by step, validation loss, metric, diverged)}."""
    found = []
    for (role, lr, seed), (train, validation, metric, diverged) in losses.items():
        for step, loss in zip((0, plan.steps // 2, plan.steps), train, strict=True):
            last = step == plan.steps
            found.append(
                {
                    "run": f"{role} {lr} {seed}",
                    "variant": "adam",
                    "role": role,
                    "lr": lr,
                    "seed": seed,
                    "step": step,
                    "train_loss": loss,
                    "validation_loss": validation if last else 9.0,
                    "diverged": diverged,
                    "test_metric": metric if last else None,
                    "seconds_a_step": 0.001,
                    "floor_occupancy": None,
                    "gradients": float(step),
                    "state_words": 2.0,
                }
            )
    return pl.DataFrame(found)


def plan_of(task, **changes):
    options = dict(
        seeds=2, tuning_seeds=1, rates=3, spacing=10.0, search=None, tuner="grid", trials=None, steps=10, warmup=0,
        schedule="constant", evaluations=2, evaluate_every=None, backend="eager", vectorised=False, options=Options(), probes=(),
        every=1, reuse=False,
    )  # fmt: skip
    return comparison.plan(["adam"], task, **{**options, **changes})


def test_rates_are_chosen_on_validation_loss_and_edges_of_both_sides_flagged():
    plan = plan_of("quadratic")
    method = plan.methods[0]
    grid = plan.grid(method)

    def chosen(validation):
        tuner = Tuner(plan.axes(method), "grid", 3, 0)
        tuner.tell([Trial(n, loss) for n, loss in zip(tuner.ask(), validation, strict=True)])
        found = comparison.choose(method, tuner, relative=True)
        return found.numbers["lr"], found.on_edge, found.tuned

    assert chosen([0.3, 0.1, 0.2]) == (grid[1], False, True)
    assert chosen([0.1, 0.2, 0.3]) == (grid[0], True, True)
    assert chosen([0.3, 0.2, 0.1]) == (grid[2], True, True)
    assert chosen([0.2, 0.2, 0.2]) == (grid[1], False, True)  # of equal ones, the nearest to the default
    assert chosen([math.inf] * 3) == (grid[1], False, False)


def test_summaries_take_best_and_final_losses_apart():
    plan = plan_of("digits-mlp", rates=1)
    losses = {("final", 0.1, seed): ([1.0, 0.2, 0.4 + seed], 0.5, 0.9, False) for seed in (0, 1)}
    chosen = {"adam": Chosen({"lr": 0.1}, False, True, [])}
    summary = comparison._summaries(plan, plan.methods, rows_of(plan, losses), chosen)[0]
    assert (summary.best_loss, summary.train_loss) == (pytest.approx(0.2), pytest.approx(0.9))


def test_the_test_split_is_seen_once_a_final_run(monkeypatch):
    task, seen = tasks.get("quadratic"), []
    original = task.evaluate
    task.evaluate = lambda params, split: seen.append(split) or original(params, split)
    for role, count in (("tuning", 0), ("final", 1)):
        seen.clear()
        run.train(task, Ours(variants.get("adam")), settings(role=role, steps=10, at=(2, 4, 6, 8, 10)))
        assert seen.count("test") == count


def test_what_counts_as_diverged():
    """Finite, but far above the start: nine times the loss's size there, or nine."""

    class Climb(tasks.PureTask):
        name, about, convex, metric, higher_is_better, steps = "climb", "", True, "x", False, 10

        def __init__(self, start, slope):
            self.height, self.slope = start, slope

        def init(self, seed):
            return {"x": torch.tensor([0.0])}

        def batches(self, seed):
            while True:
                yield None

        def full(self, split):
            return None

        def loss(self, params, batch):
            # the gradient is -slope, so each step of SGD at rate 1 adds slope to x; the loss shown rises with x
            x = params["x"].sum()
            return self.height - self.slope * x if torch.is_grad_enabled() else self.height + x

        def score(self, params, batch):
            return params["x"].sum()

    sgd = variants.get("sgd").replace(**{"moment.momentum": 0.0}, name="sgd")
    for start, rise, diverged in (
        (0.0, 8.0, False),
        (0.0, 10.0, True),
        (-5.0, 40.0, False),
        (-5.0, 50.0, True),
        (2.0, 17.0, False),
        (2.0, 19.0, True),
    ):
        task = Climb(start, rise / 10)
        rows = run.train(task, Ours(sgd), settings(lr=1.0, steps=10, at=(5, 10)))
        assert rows[-1]["diverged"] == diverged, (start, rise)
        assert math.isinf(rows[-1]["train_loss"]) == diverged


def test_schedules_of_runs():
    """Rates after the warm-up: cosine reaches 0 at the last step; inverse-sqrt is 1/√k."""
    for name, expected in (("cosine", [1.0, 0.75, 0.25]), ("inverse-sqrt", [1.0, 2**-0.5, 3**-0.5]), ("constant", [1.0] * 3)):
        optimizer = sandbox.Optimizer([torch.ones(1, requires_grad=True)], "sgd", lr=1.0)
        schedule = sandbox.schedules.of_run(optimizer, 5, 2, name)
        rates = []
        for _ in range(5):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            if schedule is not None:
                schedule.step()
        assert rates == pytest.approx([0.001, 0.5005, *expected])


def test_floor_occupancy_of_moving_floors():
    """A floor that is a function of t is taken as it is now; a D that `monotone` holds up is not on the floor."""
    p = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    moving = variants.get("apollo").replace(**{"rectifier.sigma": lambda t: 0.01 * t**3})
    optimizer = sandbox.Optimizer([p], moving)
    for _ in range(2):
        p.grad = torch.ones(4, dtype=torch.float64)
        optimizer.step()
    optimizer.state[p]["curvature.B"].copy_(torch.tensor([0.005, 0.05, 0.07, 0.09]))
    assert sandbox.probes.floor_occupancy(optimizer) == 0.75  # σ = 0.08
    held = sandbox.Optimizer([p], "monotone")
    p.grad = torch.ones(4, dtype=torch.float64)
    held.step()
    held.state[p]["curvature.B"].zero_()
    held.state[p]["rectifier.D"].copy_(torch.tensor([0.01, 0.01, 0.5, 1.0]))
    assert sandbox.probes.floor_occupancy(held) == 0.5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seeds": "3"}, "seeds must be a whole number, got '3'"),
        ({"steps": 10.5}, "steps must be a whole number, got 10.5"),
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ({"spacing": 1e200}, "spacing must lie in (1, 1000]"),
        ({"spacing": 1 + 1e-9}, "no grid of 3 different rates"),
    ],
)
def test_more_bad_arguments(change, says, tmp_path):
    with pytest.raises((ValueError, TypeError)) as caught:
        compare(**{"recipes": ["apollo"], "task": "quadratic", **SMALL, "out": tmp_path, **change})
    assert says in str(caught.value)


def test_untuned_and_lost_tunings_are_said(tmp_path):
    assert "untuned" in str(compare(["sgd"], "quadratic", out=tmp_path, **{**SMALL, "rates": 1}))
    wild = variants.get("sgd").replace(lr=1e6, name="wild")
    assert "Every rate of wild diverged in tuning" in str(compare(["sgd", wild], "quadratic", out=tmp_path, **SMALL))


def test_probes_have_the_same_rows_together_and_alone(tmp_path):
    """At every step, from the first on; a value that is NaN is a row, a step at which nothing can be said is none."""

    def nothing_over_nothing(v):
        return (v.theta - v.theta).norm() / 0.0

    options = {**SMALL, "rates": 1, "probes": ["path_length", "floor_occupancy", nothing_over_nothing], "every": 1}
    keys = ["variant", "seed", "probe", "step"]
    frames = []
    for vectorised in (True, False):
        options["vectorised"] = vectorised
        found = compare(
            ["apollo", "sgd"], tasks.get("quadratic", dtype=torch.float64), out=tmp_path / str(vectorised), **options
        )
        frames.append(found.probes.sort(keys))
    assert frames[0].select(keys).equals(frames[1].select(keys))
    assert frames[0].filter(pl.col("probe") == "path_length")["step"].min() == 2
    assert len(frames[0].filter(pl.col("value").is_nan())) == 2 * 2 * 20
    np.testing.assert_allclose(*(f["value"] for f in frames), rtol=1e-9, atol=1e-12)


def test_runs_made_together_are_the_runs_alone(tmp_path):
    """Vectorised or not: the same rates chosen, the same rows (float64; 1e-9: other kernels, 20 steps), divergence included."""
    wild = variants.get("sgd").replace(lr=1e4, name="wild")
    decays = variants.get("apollow").replace(lr=5000.0, name="decays")  # rates that its decay does not allow
    names = ["apollo", "adahessian", wild, decays]
    task = tasks.get("logistic-breast-cancer", dtype=torch.float64)
    found = [compare(names, task, out=tmp_path / str(v), **{**SMALL, "vectorised": v}) for v in (True, False)]
    keys = ["variant", "role", "lr", "seed", "step"]
    frames = [r.runs.sort(keys) for r in found]
    assert set(frames[0]["way"]) == {"vmap"}
    assert set(frames[1]["way"]) == {"eager"}
    assert frames[0].select(keys).equals(frames[1].select(keys))
    assert frames[0]["diverged"].to_list() == frames[1]["diverged"].to_list()
    assert frames[0]["diverged"].any()
    for name in ("train_loss", "validation_loss", "validation_metric", "floor_occupancy", "test_loss", "test_metric"):
        a, b = (f[name].cast(pl.Float64).to_numpy() for f in frames)
        np.testing.assert_allclose(a, b, rtol=1e-9, err_msg=name)
    assert [s.lr for s in found[0].summaries] == [s.lr for s in found[1].summaries]
    assert "made together" in str(found[0])
    assert "made together" not in str(found[1])
    # what is there is not made again, and a seed more is made for all
    more = compare(names, task, out=tmp_path / "True", **{**SMALL, "vectorised": True, "seeds": 3})
    tuning = [r.runs.filter(pl.col("role") == "tuning")["run"].to_list() for r in (found[0], more)]
    assert tuning[0] == tuning[1]  # the final runs have other company, on which rounding depends


@pytest.mark.filterwarnings("ignore:recipe 'stubborn' has no graph")
def test_a_recipe_that_cannot_be_batched_runs_alone(tmp_path):
    from tests.experiments.test_ensemble import Stubborn

    stubborn = variants.get("apollo").replace(rectifier=Stubborn(), name="stubborn")
    result = compare(["apollo", stubborn], "quadratic", out=tmp_path, **{**SMALL, "vectorised": True})
    backends = result.runs.group_by("variant").agg(pl.col("way").unique().first())
    assert dict(backends.rows()) == {"apollo": "vmap", "stubborn": "eager"}
    ends = [
        result.runs.filter((pl.col("variant") == n) & (pl.col("role") == "final"))["train_loss"] for n in ("apollo", "stubborn")
    ]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4)  # float32


@pytest.mark.parametrize("vectorised", [True, False])
def test_probes_of_a_comparison(tmp_path, vectorised):
    def step_length(v):
        return (v.theta_new - v.theta).norm()

    options = {**SMALL, "vectorised": vectorised, "probes": ["floor_occupancy", "condition_failures", step_length], "every": 5}
    result = compare(["apollo", "sgd"], "quadratic", out=tmp_path, **options)
    seen = result.probes
    assert set(seen["probe"]) == {"floor_occupancy", "condition_failures", "step_length"}
    assert set(seen.filter(pl.col("variant") == "sgd")["probe"]) == {"condition_failures", "step_length"}
    assert sorted(set(seen["step"])) == [5, 10, 15, 20]
    assert set(seen["run"]) == set(result.runs["run"])
    # the state's own account of the floor at the end of a run
    last = result.runs.filter((pl.col("variant") == "apollo") & (pl.col("step") == 20)).drop_nulls("floor_occupancy")
    mine = seen.filter((pl.col("probe") == "floor_occupancy") & (pl.col("step") == 20)).select("run", "value")
    both = last.join(mine, on="run")
    assert len(both) == len(last) >= 3
    np.testing.assert_allclose(both["value"], both["floor_occupancy"], atol=1e-7)
    written = pl.read_parquet(tmp_path / "probes.parquet")
    assert len(written) == len(seen)
    again = compare(["apollo", "sgd"], "quadratic", out=tmp_path, **options)
    assert len(again.probes) == len(seen)
    # a run that diverges is seen as long as it lives
    wild = variants.get("sgd").replace(lr=1e30, name="wild")
    short = {**options, "every": 1, "rates": 1, "probes": ["direction_norm"]}
    result = compare([wild], tasks.get("quadratic", dtype=torch.float64), out=tmp_path / "wild", **short)
    assert result.summaries[0].diverged == 2
    assert not result.probes["value"].is_nan().any()
    steps = result.probes.group_by("seed").agg(pl.col("step").max())["step"]
    assert all(2 <= step < 20 for step in steps)


def test_a_block_without_an_import_path(tmp_path):
    """As a script or a notebook defines them; there is no TOML for it, and the manifest holds the algorithm."""

    @block
    class Doubled(Rectifier):
        """D = 2 |B| + σ"""

        sigma: Number = number(default=0.01, range="(0, inf)")

        def read(self, B):
            return 2 * B.abs() + self.sigma

    mine = variants.get("apollo").replace(rectifier=Doubled(), name="mine")
    result = compare([mine, mine.replace(**{"rectifier.sigma": 0.5}, name="other")], "quadratic", out=tmp_path, **SMALL)
    ends = [s.train_loss for s in result.summaries]
    assert ends[0] != ends[1]
    assert "D = 2 |B| + σ" in json.loads((tmp_path / "manifest.json").read_text())["recipes"]["mine"]
