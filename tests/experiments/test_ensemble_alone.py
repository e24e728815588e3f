"""What cannot run together runs member by member, with the numbers of a single run; float64."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import sandbox
from sandbox import ensemble, tasks
from sandbox.experiments.runs import training as single
from sandbox.experiments.runs.methods import RecipeMethod
from sandbox.experiments.runs.run import Run

RATES, SEEDS, STEPS = [0.1, 0.03], [0, 1], 4


def numbers(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


START = {"w": numbers(9, 4, 3), "a": torch.full((1,), 0.2, dtype=torch.float64)}


def data(seed):
    return [(numbers([seed, k], 5, 4), numbers([seed, k, 1], 5, 3)) for k in range(STEPS)]


def expected(loss, batches=data, start=START):
    """torch.optim.SGD's losses, one row per rate and seed."""
    rows = []
    for lr in RATES:
        for seed in SEEDS:
            params = {name: p.clone().requires_grad_() for name, p in start.items()}
            optimizer, row = torch.optim.SGD(params.values(), lr=lr, momentum=0.9), []
            for batch in batches(seed):
                optimizer.zero_grad()
                value = loss(params, batch)
                value.backward()
                optimizer.step()
                row.append(float(value.detach()))
            rows.append(row)
    return rows


def trained(loss, batches=data, **more):
    return ensemble.run("sgd", loss, params=START, batches=batches, lr=RATES, seeds=SEEDS, steps=STEPS, **more)


def prelu(params, batch):
    return (functional.prelu(batch[0], params["a"]) @ params["w"] - batch[1]).square().mean()


def regression(criterion):
    return lambda params, batch: criterion(batch[0] @ params["w"], batch[1]) + 0 * params["a"].sum()


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss", "prelu"])
def test_what_torch_has_no_rule_for_or_a_wrong_one(name):
    """Two of each, where the rule for PReLU's weight takes seeds for configurations and raises nothing."""
    loss = prelu if name == "prelu" else regression(getattr(functional, name))
    with pytest.warns(UserWarning, match="sgd cannot be batched and runs member by member"):
        found = trained(loss)
    np.testing.assert_allclose(found.loss, expected(loss), rtol=1e-12)
    assert list(found.looped) == ["sgd"]
    assert found.chunk == 1


def test_batches_of_other_shapes_are_told_once():
    """From the third step on; the steps before are not reported again."""

    def batches(seed):
        return [(x[: 5 - seed * (k > 1)], y[: 5 - seed * (k > 1)]) for k, (x, y) in enumerate(data(seed))]

    class Rows(tasks.PureTask):
        name, metric, higher_is_better, steps = "rows", "loss", False, STEPS

        def init(self, seed):
            return START

        def batches(self, seed):
            return iter(batches(seed))

        def full(self, split):
            return data(5)[0]

        def loss(self, params, batch):
            return (batch[0] @ params["w"] - batch[1]).abs().mean() + 0 * params["a"].sum()

        score = loss

    progress, evaluations = [], []
    with pytest.warns(UserWarning, match="its batches differ in shape from seed to seed"):
        found = ensemble.run(
            "sgd", Rows(), lr=RATES, seeds=SEEDS, evaluations=STEPS, progress=lambda done, total: progress.append((done, total)),
            evaluated=lambda t, places, values, finite: evaluations.extend((t, p, values["train_loss"][k]) for k, p in enumerate(places)),
        )  # fmt: skip
    np.testing.assert_allclose(found.loss, expected(Rows().loss, batches), rtol=1e-12)
    assert progress == [(done, 4 * STEPS) for done in sorted({done for done, _ in progress})]
    assert progress[-1][0] == 4 * STEPS
    assert sorted((t, p) for t, p, _ in evaluations) == [(t, p) for t in range(STEPS + 1) for p in range(4)]
    for t, place, value in evaluations:
        assert value == pytest.approx(found.evaluations["train_loss"][place, t], rel=1e-12)


def test_the_error_of_a_single_run_is_the_one_that_counts():
    def loss(params, batch):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trained(loss)


def test_a_metric_that_leaves_torch():
    """vmap gives no number to NumPy; the steps before the evaluation were possible."""

    class Net(sandbox.Task):
        name, steps, batch_size = "net", STEPS, 5

        def model(self):
            return nn.Linear(4, 3, dtype=torch.float64)

        def data(self, split):
            return numbers(1, 20, 4), numbers(2, 20, 3)

        def loss(self, model, batch):
            return (model(batch[0]) - batch[1]).abs().mean()

        @property
        def metrics(self):
            return {"median": lambda model, batch: float(np.median((model(batch[0]) - batch[1]).detach().numpy()))}

    with pytest.warns(UserWarning, match="cannot be batched"):
        found = ensemble.run("sgd", Net(), lr=RATES, seeds=SEEDS, evaluations=1)
    assert np.isfinite(found.evaluations["validation_metric"]).all()
    assert np.array_equal(found.evaluations["train_loss"], found.evaluations["validation_loss"])


GLOBAL = np.random.default_rng(0)


class Noisy(tasks.PureTask):
    """A loss that draws, from the global generators or from some of its own."""

    name, metric, higher_is_better, steps, dtype = "noisy", "loss", False, STEPS, torch.float64
    shared = random.Random(0)

    def __init__(self, kind):
        self.kind, self.own = (
            kind,
            {"torch": torch.Generator(), "numpy": np.random.default_rng(0), "old": np.random.RandomState(0)},
        )

    def init(self, seed):
        return {"w": torch.rand(20, dtype=torch.float64)}

    def batches(self, seed):
        while True:
            yield torch.zeros((), dtype=torch.float64)

    def full(self, split):
        return torch.zeros((), dtype=torch.float64)

    def loss(self, params, batch):
        draw = {
            "dropout": lambda: functional.dropout(params["w"]).mean(),
            "python": random.random,
            "numpy": np.random.random,
            "own torch": lambda: torch.rand((), generator=self.own["torch"]),
            "own numpy": lambda: self.own["numpy"].random() + self.own["old"].rand(),
            "of the class": lambda: self.shared.random(),
            "of the module": GLOBAL.random,
            "named": lambda: GLOBAL.random(),
        }[self.kind]
        return (params["w"] - 3).square().mean() * (1 + float(torch.as_tensor(draw()).detach()) ** 2)

    score = loss


KINDS = ["dropout", "python", "numpy", "own torch", "own numpy", "of the class", "of the module", "named"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", ["sgd", "adahessian"])
def test_a_loss_that_draws(kind, recipe):
    """Equal calls give equal numbers, in a grid those of a single run; every evaluation within a step draws the same."""
    task = Noisy(kind)
    with pytest.warns(UserWarning, match="cannot be batched"):
        found = [ensemble.run(recipe, task, lr=RATES, seeds=SEEDS, evaluations=2) for _ in range(2)]
    assert np.array_equal(found[0].loss, found[1].loss)
    for i, row in enumerate(found[0].members.iter_rows(named=True)):
        settings = Run(task="noisy", method="", lr=row["lr"], seed=row["seed"], role="final", steps=STEPS, at=(2, 4))
        rows = [single.train(task, RecipeMethod(sandbox.forms.lookup.recipe(recipe)), settings) for _ in range(2)]
        assert [r["test_loss"] for r in rows[0]] == [r["test_loss"] for r in rows[1]]
        for name, values in found[0].evaluations.items():
            np.testing.assert_allclose(values[i], [np.nan if r[name] is None else r[name] for r in rows[0]], rtol=1e-12)
    assert not np.allclose(found[0].loss[0], found[0].loss[1], rtol=1e-3)  # another seed draws otherwise


class Jittered(Dataset):
    """Rows with noise from generators that the data set holds."""

    def __init__(self, kind):
        own, other = np.random.default_rng(1), torch.Generator()
        self.kind = kind
        self.draws = {
            "numpy": [own],
            "torch": [other],
            "in a function": [lambda: own.normal()],
            "in both": [own, lambda: float(torch.rand((), generator=other))],
        }[kind]

    def __len__(self):
        return 20

    def __getitem__(self, i):
        noise = 0.0
        for draw in self.draws:
            if isinstance(draw, torch.Generator):
                noise += float(torch.rand((), generator=draw))
            else:
                noise += draw() if callable(draw) else draw.normal()
        return torch.arange(4.0) / (i + 1) + noise, torch.tensor([0.1, 1.0])


@pytest.mark.parametrize("kind", ["numpy", "torch", "in a function", "in both"])
def test_a_data_set_with_a_generator_of_its_own(kind):
    """Equal calls, together and alone, whoever has read it before; each seed draws otherwise."""
    data = Jittered(kind)
    task = sandbox.Task(
        name="jittered", model=lambda: nn.Linear(4, 2), train=data, validation=data, batch_size=4, steps=7,
        loss=lambda model, batch: (model(batch[0]) - batch[1]).abs().mean(),
    )  # fmt: skip
    state = data[0][0][0]
    found = []
    for _ in range(2):
        found.append(ensemble.run("sgd", task, lr=RATES, seeds=SEEDS, evaluations=2))
        _ = [data[i] for i in range(3)]
    assert not found[0].looped
    assert np.array_equal(found[0].loss, found[1].loss)
    for i, row in enumerate(found[0].members.iter_rows(named=True)):
        settings = Run(task="jittered", method="", lr=row["lr"], seed=row["seed"], role="tuning", steps=7, at=(4, 7))
        rows = single.train(task, RecipeMethod(sandbox.forms.lookup.recipe("sgd")), settings)
        for name in ("train_loss", "validation_loss"):
            np.testing.assert_allclose(found[0].evaluations[name][i], [r[name] for r in rows], rtol=1e-5)
    batches = [[x for x, _ in (next(stream) for _ in range(7))] for stream in map(task.batches, (0, 0, 1))]
    assert all(map(torch.equal, batches[0], batches[1]))
    assert not any(map(torch.equal, batches[0], batches[2]))
    assert data[0][0][0] != state  # its own stream goes on for others
