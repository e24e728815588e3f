"""What an evaluation costs: one forward pass for loss and metrics, a sample of the training split, few points."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import sandbox
from sandbox import tasks
from sandbox.experiments.compare import compare
from sandbox.experiments.selection.plan import plan
from sandbox.experiments.settings import ComparisonSettings

DRAW = torch.Generator().manual_seed(0)
X = {split: torch.randn(n, 3, generator=DRAW) for split, n in (("train", 300), ("validation", 40), ("test", 50))}
Y = {split: (x.sum(1) > 0).long() for split, x in X.items()}
CALLS = []


class Counted(nn.Module):
    """A linear layer that records the rows of each call in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x):
        if not self.training:
            CALLS.append(len(x))
        return self.inner(x)


def accuracy(output, batch):
    return (output.argmax(-1) == batch[1]).float().mean()


def task(**changes):
    splits = {split: (X[split], Y[split]) for split in X}
    given = dict(
        name="counted", model=Counted, steps=60, batch_size=25, output=lambda model, batch: model(batch[0]),
        criterion=lambda output, batch: functional.cross_entropy(output, batch[1]), metrics={"accuracy": accuracy},
    )  # fmt: skip
    return sandbox.Task(**{**splits, **given, **changes})


def test_loss_and_metrics_come_from_one_forward_pass():
    one, model = task(), Counted()
    CALLS.clear()
    loss, share = one.evaluate(model.train(), "validation")
    assert CALLS == [40]
    logits = model(X["validation"]).detach().double()
    assert loss == pytest.approx(float(functional.cross_entropy(logits, Y["validation"])), rel=1e-6)  # float32
    assert share == pytest.approx(float((logits.argmax(-1) == Y["validation"]).double().mean()), rel=1e-6)
    assert float(one.loss(model, (X["test"], Y["test"])).detach()) == pytest.approx(one.evaluate(model, "test")[0], rel=1e-6)


def test_a_loss_of_a_subclass_counts():
    class Doubled(sandbox.Task):
        name, steps, batch_size = "doubled", 5, 25
        metrics = {"accuracy": accuracy}

        def model(self):
            return Counted()

        def data(self, split):
            return X[split], Y[split]

        def output(self, model, batch):
            return model(batch[0])

        def criterion(self, output, batch):
            return functional.cross_entropy(output, batch[1])

    class Squared(Doubled):
        def loss(self, model, batch):
            return super().loss(model, batch) ** 2

    class Scored(tasks.get("digits-mlp").__class__):
        def score(self, params, batch):
            return super().score(params, batch) + 1

    model = Counted()
    a, b = Doubled().evaluate(model, "test"), Squared().evaluate(model, "test")
    assert b == (pytest.approx(a[0] ** 2, rel=1e-6), a[1])
    params = Scored().init(0)
    plain, more = tasks.get("digits-mlp").evaluate(params, "test"), Scored().evaluate(params, "test")
    assert more == (plain[0], pytest.approx(plain[1] + 1, rel=1e-6))


def test_what_is_lacking_is_named():
    with pytest.raises(TypeError, match="a task needs criterion="):
        task(criterion=None)
    with pytest.raises(TypeError, match="a task needs loss="):
        task(output=None, criterion=None)


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("name", ["counted", "softmax-digits"])
def test_training_losses_are_on_a_sample_until_the_end(name, vectorised, tmp_path):
    """Start and middle: the loss of as many rows as the validation split has; end: of all, taken here from the parameters."""
    which = task() if name == "counted" else tasks.get(name)
    rows = compare(
        ["sgd"], which, seeds=2, rates=1, steps=8, evaluations=2, vectorised=vectorised, out=tmp_path, spacing=2.0
    ).runs.sort("seed", "step")
    start = which.start(0)
    (sample,) = which.training_sample
    assert len(sample[0]) == len(which.full("validation")[0])
    everything = {tuple(row.tolist()) for row in which.full("train")[0]}
    assert all(tuple(row.tolist()) in everything for row in sample[0])
    losses = [float(which.loss(start, batch).detach()) for batch in (sample, which.full("train"))]
    assert losses[0] != pytest.approx(losses[1], rel=1e-4) or name == "softmax-digits"  # zeros: log 10 everywhere
    assert rows["train_loss"][0] == pytest.approx(losses[0], rel=1e-5)
    assert rows["step"].to_list() == [0, 4, 8] * 2
    params = dict(start.named_parameters()) if isinstance(start, nn.Module) else start
    optimizer, batches = sandbox.Optimizer(params.items(), "sgd"), which.stream(0, start)
    for step in range(1, 9):
        optimizer.zero_grad()
        which.loss(start, next(batches)).backward()
        optimizer.step()
        if step in (4, 8):
            batch = sample if step == 4 else which.full("train")
            assert rows["train_loss"][step // 4] == pytest.approx(float(which.loss(start, batch).detach()), rel=1e-4)
            assert rows["sample_loss"][step // 4] == pytest.approx(float(which.loss(start, sample).detach()), rel=1e-4)


def test_a_task_with_an_evaluation_of_its_own_keeps_it(tmp_path):
    class Own(type(tasks.get("softmax-digits"))):
        def evaluate(self, params, split):
            return {"train": 1.0, "validation": 2.0, "test": 3.0}[split], 0.5

    rows = compare(["sgd"], Own(), seeds=2, rates=1, steps=4, evaluations=2, vectorised=False, out=tmp_path).runs
    assert set(rows["train_loss"]) == {1.0}


@pytest.mark.parametrize("name", ["digits-mlp", "softmax-digits", "ridge-diabetes", "quadratic", "lenet-fashion"])
def test_evaluations_cost_at_most_half_of_the_training(name):
    settings = ComparisonSettings(vectorised=False)
    planned = plan(["sgd"], name, settings)
    which = planned.task
    validation = len(np.atleast_1d(which.full("validation")[0]))
    if name == "quadratic":
        assert len(planned.at) == 20
        return
    train = min(len(which.full("train")[0]), 10_000)
    evaluated = len(planned.at) * 2 * validation + train + validation + len(which.full("test")[0])
    trained = planned.steps * which.batch_size
    assert evaluated <= trained / 2
    assert len(planned.at) == 20 or evaluated + 2 * validation > trained / 2  # one more would be too much
    tuning = 9 * 3 * 4 * validation
    assert planned.evaluated_share == pytest.approx((tuning + 10 * evaluated) / ((27 + 10) * trained))
    assert planned.evaluated_share <= 0.5


def test_a_training_source_without_a_batch_has_no_size(tmp_path):
    empty = task(train=lambda seed: [])
    assert np.isnan(empty.update_size())
    with pytest.raises(ValueError, match="at least one batch an epoch"):
        compare(["sgd"], empty, seeds=2, rates=1, steps=3, out=tmp_path)


def test_what_was_evaluated_is_told(tmp_path):
    result = compare(["sgd"], task(), seeds=2, rates=1, out=tmp_path)
    share = result.plan.evaluated_share
    expected = f"Evaluated at the start and at 4 points; {share:.2g} rows evaluated per row trained.  Training losses before"
    assert expected in str(result)
    assert expected in str(sandbox.load(tmp_path))
