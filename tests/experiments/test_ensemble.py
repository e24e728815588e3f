"""An ensemble's members are the runs that they would be alone; float64, rounding stated."""

import gc
import weakref

import numpy as np
import pytest
import torch

import variants
from sandbox import ensemble
from sandbox.blocks import Number, Rectifier, block, number
from sandbox.ensemble import lockstep, recorded
from sandbox.utils import memory
from tests.experiments.bowl import SHAPES, TASK, Bowl, alone, close
from tests.light import MECHANISMS, NAMES, each, light
from tests.outside_blocks import Halfway, MeanAbsolute, RawProbe

FACTORS = [1.0, 0.7, 0.5, 0.9, 0.8, 0.6, 0.95, 0.4]


@pytest.mark.parametrize("name", each((name for name in NAMES if name != "soap"), few=MECHANISMS))
def test_eight_members_of_every_variant_equal_eight_single_runs(name):
    """Every number different in each member, two seeds.  Not SOAP: where eigenvalues are 0, as of a (64, 32) matrix's left factor,
    the vectors are the library's choice, another one in a batch; tests/blocks/test_basis.py has it on full ranks."""
    base = light(name)
    numbers = {n: v for n, v in base.hyperparameters().items() if n != "lr" and np.isfinite(v)}
    # RAdam's ρ_∞ > 4 bounds its β from below
    members = [
        base.replace(**{n: v * (f**0.01 if "beta" in n and "radam" in name else f) for n, v in numbers.items()}, name=f"{name}-{k}")
        for k, f in enumerate(FACTORS[:4])
    ]  # fmt: skip
    steps = 5 if name == "no-stepsize-correction" else 9  # it makes rounding ten times as large with every second step
    found = ensemble.run(members, TASK, lr=0.004, seeds=[3, 1], steps=steps)
    assert not found.looped
    assert found.chunk == 8
    assert found.members["seed"].to_list() == [3, 1] * 4
    for i, row in enumerate(found.members.iter_rows(named=True)):
        params, losses = alone(members[i // 2], row["lr"], row["seed"], steps)
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
    assert found.frame.columns[-2:] == ["loss", "diverged"]
    assert found.frame().equals(found.frame)


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


def test_chunks_change_nothing_and_keep_to_the_budget(monkeypatch):
    """The measure is the same that chose the chunks, but over the whole run; the budget is that of about five members."""
    whole = ensemble.run("apollo", TASK, lr=np.geomspace(1e-3, 1e-1, 12), seeds=2, steps=4, evaluations=1)
    assert whole.chunk == 24
    with monkeypatch.context() as patched:
        patched.setattr(recorded, "fits", lambda *_: False)
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


def test_a_chunk_is_freed_when_it_has_run(monkeypatch):
    """By its last reference: garbage may be collected late, and the budget is for now."""
    ensemble.run("apollo", TASK, steps=2)  # the first call in a process imports, and torch keeps a traceback
    made, init = [], lockstep.Lockstep.__init__

    def told(self, *arguments, **options):
        made.append(weakref.ref(self))
        init(self, *arguments, **options)

    monkeypatch.setattr(lockstep.Lockstep, "__init__", told)
    gc.disable()
    try:
        ensemble.run("apollo", TASK, lr=[0.01, 0.02], steps=3, evaluations=1, probes=["direction_norm"], every=2)
        assert [one() for one in made] == [None, None]
    finally:
        gc.enable()


def times(factor):
    """A rectifier D = factor |B|, of a class that is called like every other made here."""

    @block
    class Times(Rectifier):
        text = "D = c |B|"

        def read(self, B):
            return factor * B.abs() + 1.0

    return Times()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
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


@pytest.mark.parametrize("name", ["apollo", pytest.param("amsgrad", marks=pytest.mark.slow)])
def test_compiled_equals_eager(name):
    """And the graph is compiled once for two runs of the same shapes."""
    from sandbox.ensemble import compiled

    options = {"lr": [0.01, 0.02, 0.05], "seeds": 2, "steps": 8, "probes": ["direction_norm"], "every": 4}
    task = Bowl({"a": (4, 3), "c": ()})  # all six tensors would take Inductor twice as long
    eager = ensemble.run(name, task, **options)
    known = len(compiled._COMPILED)
    for _ in range(2):
        fast = ensemble.run(name, task, compiled=True, **options)
        np.testing.assert_allclose(fast.loss, eager.loss, rtol=1e-11)
        for n in task.shapes:
            close(fast.params[n], eager.params[n])
        np.testing.assert_allclose(fast.probes["direction_norm"], eager.probes["direction_norm"], rtol=1e-10)
    assert len(compiled._COMPILED) == known + 1


def test_a_bare_loss_is_compiled_once():
    """Each call makes a task of it; another loss of the same shapes is another graph."""
    from sandbox.ensemble import compiled

    def square(params, _):
        return params.square().sum()

    def cosine(params, _):
        return (1 - params.cos()).sum()

    def trained(loss, **options):
        return ensemble.run("sgd", loss, params=torch.linspace(-1, 1, 6), lr=[0.1, 0.2], steps=3, **options).params

    known = len(compiled._COMPILED)
    for loss in (square, square, cosine):
        torch.testing.assert_close(trained(loss, compiled=True), trained(loss))
    assert len(compiled._COMPILED) == known + 2
