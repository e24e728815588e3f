"""An ensemble's members are the runs that they would be alone; float64, rounding stated."""

import warnings

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox import ensemble, memory, probes, tasks
from sandbox.blocks import Number, Rectifier, block, number
from sandbox.experiments import run as single
from sandbox.experiments.methods import Ours
from sandbox.experiments.settings import Run
from sandbox.schedules import InverseSquareRoot
from tests.light import NAMES, light
from tests.outside_blocks import Halfway, MeanAbsolute, RawProbe

SHAPES = {"a": (4, 3), "b": (5,), "c": (), "d": (2, 3, 2), "e": (3, 2, 2, 2), "f": (20, 4)}
FACTORS = [1.0, 0.7, 0.5, 0.9, 0.8, 0.6, 0.95, 0.4]


class Bowl(tasks.PureTask):
    """Σ ½ h θ² + w (1 - cos θ) + ξᵀθ + .05 (Σθ)² over six tensors, in float64."""

    name, about, convex, metric, higher_is_better, steps = "bowl", "", False, "loss", False, 12
    dtype = torch.float64

    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        self.h = {n: 5 * torch.rand(s, generator=draw, dtype=torch.float64) + 0.1 for n, s in SHAPES.items()}
        self.w = {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in SHAPES.items()}

    def _draw(self, seed, scale):
        draw = torch.Generator().manual_seed(seed)
        while True:
            yield {n: scale * torch.randn(s, generator=draw, dtype=torch.float64) for n, s in SHAPES.items()}

    def init(self, seed):
        return next(self._draw(seed, 1.0))

    def batches(self, seed):
        return self._draw(seed + 100, 0.3)

    def full(self, split):
        return {n: torch.zeros(s, dtype=torch.float64) for n, s in SHAPES.items()}

    def loss(self, params, batch):
        return sum(
            (0.5 * self.h[n] * p.square() + self.w[n] * (1 - p.cos()) + batch[n] * p).sum() + 0.05 * p.sum().square()
            for n, p in params.items()
        )

    score = loss


TASK = Bowl()


def alone(recipe, lr, seed, steps, watch=None, rates=None):
    """The run of one member by the optimizer: (parameters, loss at each step)."""
    params = {n: p.clone().requires_grad_() for n, p in TASK.init(seed).items()}
    optimizer = sandbox.Optimizer(params.items(), recipe, lr=lr, seed=seed, nonfinite="pass")
    optimizer.watch = watch
    batches, losses = TASK.batches(seed), []
    for step in range(steps):
        batch = next(batches)
        if rates is not None:
            optimizer.param_groups[0]["lr"] = rates[step]

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = TASK.loss(params, batch)
            if not optimizer.param_groups[0]["recipe"].second_order:
                loss.backward()
            return loss

        losses.append(float(optimizer.step(closure).detach()))
    return {n: p.detach() for n, p in params.items()}, losses


def close(a, b):
    """Other kernels, 12 steps: 1e-10 relative, and absolute where entries pass through zero."""
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "soap"])
def test_eight_members_of_every_variant_equal_eight_single_runs(name):
    """Every number different in each member, two seeds.  Not SOAP: where eigenvalues are 0, as of a (64, 32) matrix's left factor,
    the vectors are the library's choice, another one in a batch; tests/blocks/test_basis.py has it on full ranks."""
    base = light(name)
    numbers = {n: v for n, v in base.hyperparameters().items() if n != "lr" and np.isfinite(v)}
    # RAdam's ρ_∞ > 4 bounds its β from below
    members = [
        base.replace(**{n: v * (f**0.01 if "beta" in n and name == "radam" else f) for n, v in numbers.items()}, name=f"{name}-{k}")
        for k, f in enumerate(FACTORS[:4])
    ]  # fmt: skip
    found = ensemble.run(members, TASK, lr=0.004, seeds=[3, 1], steps=9)
    assert not found.looped
    assert found.chunk == 8
    assert found.members["seed"].to_list() == [3, 1] * 4
    for i, row in enumerate(found.members.iter_rows(named=True)):
        params, losses = alone(members[i // 2], row["lr"], row["seed"], 9)
        close(torch.tensor(found.loss[i]), torch.tensor(losses, dtype=torch.float64))
        for n, p in params.items():
            close(found.params[n][i], p)


def test_blocks_from_outside_the_package():
    base = variants.get("apollo")
    recipes = [
        base.replace(rectifier=Halfway(sigma=0.05)),
        base.replace(curvature=MeanAbsolute(), rectifier=Halfway(sigma=0.5)),
        base.replace(curvature=RawProbe(), rectifier=Halfway(sigma=0.5)),
    ]
    found = ensemble.run(recipes, TASK, lr=[0.01, 0.02], seeds=2, steps=6, probes=["direction_norm"])
    assert not found.looped
    for i, row in enumerate(found.members.iter_rows(named=True)):
        params, _ = alone(recipes[i // 4], row["lr"], row["seed"], 6)
        for n, p in params.items():
            close(found.params[n][i], p)


def test_structures_mix_and_members_come_in_order():
    found = ensemble.run(["apollo", "adamw", "hessian-ema"], TASK, lr=[0.01, 0.02], seeds=2, steps=5)
    rows = found.members.select("variant", "lr", "seed").rows()
    assert rows == [(n, r, s) for n in ("apollo", "adamw", "hessian-ema") for r in (0.01, 0.02) for s in (0, 1)]
    for i, (name, lr, seed) in enumerate(rows):
        params, _ = alone(variants.get(name), lr, seed, 5)
        close(found.params["a"][i], params["a"])
    assert found.frame().columns[-2:] == ["loss", "diverged"]


def test_a_number_that_only_the_last_of_many_members_have():
    """More rows than polars looks at by itself to find a column's type."""
    found = ensemble.run(["sgd", "apollo", "adagrad"], "quadratic", lr=np.geomspace(1e-4, 1e-2, 120), steps=1)
    numbers = found.members["rectifier.sigma"].to_list()
    assert numbers[:120] == [None] * 120
    assert numbers[120:240] == [variants.get("apollo").rectifier.sigma] * 120


def test_a_member_that_diverges_disturbs_no_other():
    wild = ensemble.run("apollo", TASK, lr=[0.01, 1e200, 0.03], seeds=2, steps=10, evaluations=2)
    tame = ensemble.run("apollo", TASK, lr=[0.01, 0.02, 0.03], seeds=2, steps=10, evaluations=2)
    others = [0, 1, 4, 5]
    assert np.array_equal(wild.loss[others], tame.loss[others])  # bitwise
    assert all(torch.equal(wild.params[n][others], tame.params[n][others]) for n in SHAPES)
    for name, values in wild.evaluations.items():
        assert np.array_equal(values[others], tame.evaluations[name][others], equal_nan=True)
    assert (wild.diverged[[2, 3]] > 0).all()
    assert not wild.diverged[others].any()
    first = wild.diverged[2] - 1
    assert wild.finite[2, :first].all()
    assert not wild.finite[2, first]


def test_a_gradient_that_is_not_finite_counts_where_the_loss_is():
    found = ensemble.run("sgd", lambda p, batch: p.abs().sqrt().sum(), params=torch.zeros(2), lr=[0.1, 0.2], steps=2)
    assert np.isfinite(found.loss[:, 0]).all()
    assert found.diverged.tolist() == [1, 1]


def test_numbers_in_the_first_state():
    """Adagrad's first sum, different in each member."""
    members = [variants.get("adagrad").replace(**{"curvature.start": start}) for start in (0.1, 0.5, 2.0)]
    found = ensemble.run(members, TASK, lr=0.1, seeds=2, steps=4)
    for i, row in enumerate(found.members.iter_rows(named=True)):
        params, _ = alone(members[i // 2], 0.1, row["seed"], 4)
        close(found.params["f"][i], params["f"])


def test_chunks_change_nothing_and_keep_to_the_budget():
    """The measure is the same that chose the chunks, but over the whole run; the budget is that of about five members."""
    whole = ensemble.run("apollo", TASK, lr=np.geomspace(1e-3, 1e-1, 12), seeds=2, steps=4, evaluations=1)
    assert whole.chunk == 24
    one = memory.peak(lambda: ensemble.run("apollo", TASK, lr=0.01, steps=4, evaluations=1))
    budget = 5 * one
    found = []
    peak = memory.peak(
        lambda: found.append(
            ensemble.run("apollo", TASK, lr=np.geomspace(1e-3, 1e-1, 12), seeds=2, steps=4, evaluations=1, memory=budget)
        )
    )
    assert 2 <= found[0].chunk < 24
    kept = sum(p.numel() * 8 for p in whole.params.values())  # results of all members stay
    assert peak <= budget + 2 * kept
    np.testing.assert_allclose(found[0].loss, whole.loss, rtol=1e-12)
    for n in SHAPES:
        close(found[0].params[n], whole.params[n])
    with pytest.raises(ValueError, match=r"memory must be at least [\d,]+ bytes"):
        ensemble.run("apollo", TASK, steps=2, memory=1000)
    with pytest.raises(ValueError, match="memory"):
        ensemble.run("apollo", TASK, steps=2, memory=0)


def times(factor):
    """A rectifier D = factor |B|, of a class that is called like every other made here."""

    @block
    class Times(Rectifier):
        text = "D = c |B|"

        def read(self, B):
            return factor * B.abs() + 1.0

    return Times()


@pytest.mark.parametrize("compiled", [False, True])
def test_classes_called_alike_are_different_structures(compiled):
    """In one run, and in the graphs that a process keeps."""
    recipes = [variants.get("apollo").replace(rectifier=times(factor), name=str(factor)) for factor in (1.0, 5.0)]
    together = ensemble.run(recipes, TASK, lr=[0.01, 0.02], steps=5, compiled=compiled)
    for i, row in enumerate(together.members.iter_rows(named=True)):
        params, _ = alone(recipes[i // 2], row["lr"], 0, 5)
        for n, p in params.items():
            close(together.params[n][i], p)


@block
class Stubborn(Rectifier):
    """D = max(|B|, σ), chosen in Python: no vmap."""

    sigma: Number = number(default=0.01, range="(0, inf)")
    text = "D = max(|B|, σ)"

    def read(self, B):
        return B.abs().clamp(min=self.sigma) if float(B.sum()) > -1e9 else B


def test_what_cannot_be_batched_runs_in_a_loop_and_says_why():
    stubborn = variants.get("apollo").replace(rectifier=Stubborn(), name="stubborn")
    with pytest.warns(UserWarning, match="stubborn cannot be batched and runs member by member: RuntimeError"):
        found = ensemble.run(
            [stubborn, "apollo"], TASK, lr=[0.01, 0.02], seeds=2, steps=6, evaluations=2, probes=["direction_norm"]
        )
    assert list(found.looped) == ["stubborn"]
    np.testing.assert_allclose(found.loss[:4], found.loss[4:], rtol=1e-12)
    np.testing.assert_allclose(found.probes["direction_norm"][:4], found.probes["direction_norm"][4:], rtol=1e-12)
    np.testing.assert_allclose(found.evaluations["train_loss"][:4], found.evaluations["train_loss"][4:], rtol=1e-12)


def test_probes_are_those_of_a_single_run():
    names = [name for name, probe in probes.ALL.items() if "truth" not in getattr(probe, "needs", ())]
    found = ensemble.run(["apollo", "sgd"], TASK, lr=[0.01, 0.05], seeds=2, steps=12, probes=names, every=4)
    assert found.probed == [4, 8, 12]
    for i, row in enumerate(found.members.iter_rows(named=True)):
        watch = probes.Watch(names, every=4, tensors=False)
        alone(variants.get(row["variant"]), row["lr"], row["seed"], 12, watch)
        for name in names:
            values = [r["value"] for r in watch.rows if r["probe"] == name]
            if values:
                np.testing.assert_allclose(found.probes[name][i], values, rtol=1e-9, atol=1e-12)
            else:
                assert np.isnan(found.probes[name][i]).all()


def test_a_probe_that_says_nothing_at_first_or_ever():
    """Step 1 has no D of the step before, and SGD has no floor."""
    found = ensemble.run("sgd", TASK, lr=[0.01, 0.02], steps=3, probes=["path_length", "floor_occupancy"])
    assert found.said["path_length"].tolist() == [[False, True, True]] * 2
    assert np.array_equal(np.isfinite(found.probes["path_length"]), found.said["path_length"])
    assert np.isnan(found.probes["floor_occupancy"]).all()
    assert not found.said["floor_occupancy"].any()


@pytest.mark.parametrize(("schedule", "warmup"), [("constant", 3), ("cosine", 0), ("inverse-sqrt", 4)])
def test_schedules_and_evaluations_are_those_of_a_single_run(schedule, warmup):
    """Against `sandbox.experiments.run.train`, rows and all; logistic regression in float64."""
    task = tasks.get("logistic-breast-cancer", dtype=torch.float64)
    recipe = variants.get("apollo")
    found = ensemble.run(recipe, task, lr=[0.3, 0.03], seeds=[7, 2], steps=12, warmup=warmup, schedule=schedule, evaluations=3)
    for i, row in enumerate(found.members.iter_rows(named=True)):
        settings = Run(
            task=task.name, method="", lr=row["lr"], seed=row["seed"], role="tuning", steps=12, at=(4, 8, 12), warmup=warmup,
            schedule=schedule,
        )  # fmt: skip
        rows = single.train(task, Ours(recipe), settings)
        assert [r["step"] for r in rows] == found.at
        for name, values in found.evaluations.items():
            expected = [np.nan if r[name] is None else r[name] for r in rows]
            np.testing.assert_allclose(values[i], expected, rtol=1e-10, err_msg=name)


def test_rates_that_are_functions_of_t():
    found = ensemble.run("apollo", TASK, lr=[InverseSquareRoot(first=0.05), 0.01], steps=6)
    assert np.isnan(found.members["lr"][0])
    params, _ = alone(variants.get("apollo"), 0.05, 0, 6, rates=[0.05 / np.sqrt(t + 1) for t in range(6)])
    close(found.params["a"][0], params["a"])


def test_a_bare_loss_of_any_tree():
    start = [torch.tensor([1.0, -2.0], dtype=torch.float64), {"x": torch.tensor(3.0, dtype=torch.float64)}]

    def loss(params, batch):
        return params[0].square().sum() + (params[1]["x"] - batch).square()

    def batches(seed):
        return [torch.tensor(float(seed), dtype=torch.float64)] * 3

    found = ensemble.run("sgd", loss, params=start, batches=batches, lr=[0.1, 0.2], seeds=[0, 5], steps=200)
    assert found.params[1]["x"].shape == (4,)
    assert found.params[1]["x"].tolist() == pytest.approx([0, 5, 0, 5], abs=0.2)
    without = ensemble.run("sgd", lambda p, batch: p.square().sum(), params=torch.ones(3), lr=0.1, steps=3)
    assert without.loss.shape == (1, 3)


def test_a_rate_that_the_decay_does_not_allow_is_lost_alone():
    found = ensemble.run("apollow", TASK, lr=[0.01, 1e5], steps=4)
    assert found.diverged.tolist() == [0, 1]
    assert np.isinf(found.loss[1]).all()
    assert np.isfinite(found.loss[0]).all()


def test_compiled_equals_eager():
    """And the graph is compiled once for two runs of the same shapes."""
    from sandbox.ensemble import compiled

    options = {"lr": [0.01, 0.02, 0.05], "seeds": 2, "steps": 8, "probes": ["direction_norm"], "every": 4}
    eager = ensemble.run("apollo", TASK, **options)
    known = len(compiled._COMPILED)
    for _ in range(2):
        fast = ensemble.run("apollo", TASK, compiled=True, **options)
        np.testing.assert_allclose(fast.loss, eager.loss, rtol=1e-11)
        for n in SHAPES:
            close(fast.params[n], eager.params[n])
        np.testing.assert_allclose(fast.probes["direction_norm"], eager.probes["direction_norm"], rtol=1e-10)
    assert len(compiled._COMPILED) == known + 1


@pytest.mark.parametrize("name", ["digits-mlp", "digits-cnn", "softmax-digits", "ridge-diabetes", "rosenbrock", "quadratic"])
def test_every_task_can_be_batched(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ensemble.run(["apollo", "adahessian"], name, lr=[1e-3, 1e-2], seeds=2, steps=3, evaluations=1)
    assert not found.looped
    assert np.isfinite(found.loss).all()


def test_clear_errors():
    for wrong, words in [
        ({"lr": -1.0}, "lr must lie"),
        ({"lr": []}, "lr must name at least one rate"),
        ({"steps": 0}, "steps must be"),
        ({"seeds": []}, "at least one seed"),
        ({"warmup": 20, "steps": 10}, "warmup must lie"),
        ({"schedule": "cosin"}, "cosine"),
        ({"probes": ["floor"]}, "floor_occupancy"),
        ({"params": torch.ones(2)}, "bare loss"),
    ]:
        with pytest.raises(ValueError, match=words):
            ensemble.run("apollo", TASK, **wrong)
    with pytest.raises(ValueError, match="needs params"):
        ensemble.run("apollo", lambda p, b: p.sum())
    with pytest.raises(TypeError, match="task must be"):
        ensemble.run("apollo", 3)
    with pytest.raises(ValueError, match="at least one recipe"):
        ensemble.run([], TASK)


def test_clear_errors_about_a_bare_loss():
    def run(**more):
        return ensemble.run("sgd", lambda p, batch: (p - batch).square().sum(), params=torch.ones(3), steps=3, **more)

    with pytest.raises(TypeError, match="batches must be a function of the seed that gives its batches, got a list"):
        run(batches=[torch.ones(3)])
    with pytest.raises(ValueError, match="evaluations must be 0 for a bare loss"):
        run(batches=lambda seed: [torch.ones(3)], evaluations=2)
    for of_one in (torch.ones(1), None, [torch.ones(3)]):
        with pytest.raises(ValueError, match="batches must be trees of tensors, at each step of equal shapes for all seeds"):
            run(batches=lambda seed, of_one=of_one: [of_one if seed else torch.ones(3)], seeds=2)
    with pytest.raises(ValueError, match="batches must give at least one batch each time it is called, got none for seed 4"):
        run(batches=lambda seed: [], seeds=[4])
    used_up = iter([torch.ones(3)] * 2)
    with pytest.raises(ValueError, match="at least one batch each time"):
        run(batches=lambda seed: used_up)
