"""A grid's recorded update is its update under vmap, bit for bit: the same operators on the same numbers."""

import pytest
import torch
from torch.utils import _pytree as pytree

import variants
from sandbox import ensemble, tasks
from sandbox.backends.tracing.record import NotRecordable
from sandbox.ensemble import recorded
from sandbox.utils import memory
from tests.experiments.bowl import TASK
from tests.light import each, light

# Among them: states returned in another order, a second look, products with a Hessian, matrices beside vectors, a history
FEW = ["apollo", "amsgrad", "olbfgs", "adahessian", "muon", "soap", "lbfgs"]


def trained(recipe, task=TASK, **more):
    found = ensemble.run([recipe], task, **{"lr": [0.004, 0.002], "seeds": [3, 1], "steps": 5} | more)
    assert not found.looped
    return [torch.from_numpy(found.loss), *pytree.tree_leaves(found.params)]


def equal(one, two):
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def least(params):
    """The memory from which on steps are recorded."""
    return recorded.VALUES * recorded.SHARE * sum(p.numel() * p.element_size() for p in params.values())


@pytest.fixture
def recordings(monkeypatch):
    """Whether each recording so far succeeded."""
    seen = []

    def record(*arguments, made=recorded.record, **options):
        seen.append(False)
        graph = made(*arguments, **options)
        seen[-1] = True
        return graph

    monkeypatch.setattr(recorded, "record", record)
    return seen


@pytest.mark.parametrize("name", each(variants.names(), few=FEW))
def test_every_variant(name, recordings):
    recipe = light(name)
    task = "digits-mlp" if recipe.analysis.draws_labels or recipe.basis.factors else TASK
    fast = trained(recipe, task)
    assert recordings == [True]
    assert equal(fast, trained(recipe, task, memory=least(tasks.get(task).init(0)) - 1))
    assert recordings == [True]


def test_numbers_that_differ_and_the_probed_steps(recordings, monkeypatch):
    """Steps that probes look at are not recorded; the grid has other sizes than the recording."""
    base = variants.get("apollo")
    recipes = [base.replace(**{"rectifier.sigma": s, "moment.beta": b}) for s, b in ((0.01, 0.9), (0.1, 0.5), (0.3, 0.8))]

    def run():
        found = ensemble.run(recipes, TASK, lr=[0.004], seeds=4, steps=7, probes=["direction_norm"], every=3)
        return [torch.from_numpy(x) for x in (found.loss, found.probes["direction_norm"])]

    fast = run()
    assert recordings == [True]
    monkeypatch.setattr(recorded, "fits", lambda *_: False)  # probes need more than the least memory
    assert equal(fast, run())


def test_what_has_no_recording_runs_as_ever(monkeypatch):
    expected = trained(variants.get("apollo"))

    def refuses(*_, **__):
        raise NotRecordable("no")

    monkeypatch.setattr(recorded, "record", refuses)
    assert equal(expected, trained(variants.get("apollo")))


def test_a_function_of_t_is_asked_at_every_step(recordings):
    asked = []

    def beta(t):
        asked.append(1)
        return 0.9

    trained(variants.get("apollo").replace(**{"moment.beta": beta}))
    steps = len(asked)
    trained(variants.get("apollo").replace(**{"moment.beta": beta}), steps=10)
    assert len(asked) - steps >= steps + 5
    assert recordings == []


@pytest.mark.parametrize("name", ["apollo", "lbfgs", "adahessian"])
def test_a_recording_keeps_to_the_budget(name, recordings):
    """At the least budget that allows one."""
    params = TASK.init(0)
    assert memory.peak(lambda: trained(variants.get(name), memory=least(params))) <= least(params) / recorded.SHARE
    assert recordings == [True]
    trained(variants.get(name), memory=least(params) - 1)
    assert recordings == [True]


@pytest.mark.parametrize("name", ["apollo", "channel-secant", "muon"])
def test_gradients_that_lie_transposed(name):
    w = torch.randn(5, 3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(params, batch):
        return (w * params["a"].permute(3, 1, 2, 0)).square().sum()

    params = {"a": torch.ones(4, 3, 2, 5, dtype=torch.float64)}
    fast = trained(variants.get(name), loss, params=params)
    assert equal(fast, trained(variants.get(name), loss, params=params, memory=least(params) - 1))
