"""A network, its data and its randomness: what belongs to a run stays in it."""

# ruff: noqa: NPY002 - NumPy's global generator is one of those that must be left alone

import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

import sandbox
from sandbox import tasks
from sandbox.tasks.streams import Generators

X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def accuracy(model, batch):
    return (model(batch[0]).argmax(-1) == batch[1]).float().mean()


def make(**changes):
    options = dict(name="net", model=network, train=(X, Y), validation=(X[:20], Y[:20]), test=(X[20:], Y[20:]), loss=loss)
    return sandbox.Task(**{**options, "metrics": {"accuracy": accuracy}, "epochs": 2, "batch_size": 8, **changes})


class Augmented(Dataset):
    """Rows with noise from all three global generators, more of it in every epoch."""

    def __init__(self):
        self.asked = 0

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        self.asked += 1
        for _ in range(self.asked // 50):
            random.random()
        return X[i] + random.random() + np.random.rand() + torch.rand(()), Y[i]


def sources():
    return {
        "tensors": dict(train=(X, Y), batch_size=8),
        "data set": dict(train=Augmented(), batch_size=8),
        "loader": dict(train=DataLoader(TensorDataset(X, Y), 8, shuffle=True)),
        "loader with its own generator": dict(
            train=DataLoader(TensorDataset(X, Y), 8, shuffle=True, generator=torch.Generator())
        ),
        "function": dict(
            train=lambda seed: ((X[i : i + 8] + seed % 7, Y[i : i + 8]) for i in range(0, 50, 8)), steps=12, epochs=None
        ),
    }


@pytest.mark.parametrize("kind", sources())
def test_batches_depend_on_the_seed_alone(kind):
    """Whoever draws in between, however often the data was read before: bitwise the same, also in the second epoch."""

    def drawn(task, seed, disturb):
        found = []
        for batch in itertools.islice(task.batches(seed), 12):
            found.append(torch.cat([batch[0].reshape(-1), batch[1].reshape(-1).float()]))
            if disturb:
                torch.rand(3), random.random(), np.random.rand()
        return torch.cat(found)

    task = make(**sources()[kind])
    first = drawn(task, 0, False)
    if kind == "data set":
        task = make(**sources()[kind])  # its rows depend on how often it was asked
    assert torch.equal(first, drawn(task, 0, True))
    assert not torch.equal(first, drawn(make(**sources()[kind]), 1, False))
    half = len(first) // 2
    assert not torch.equal(first[:half], first[half:])  # another order in the second epoch


def test_the_global_generators_are_left_alone():
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = torch.rand(2), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    task = make(train=Augmented())
    model = task.start(3)
    next(task.batches(3))
    task.evaluate(model, "train")
    found = torch.rand(2), random.random(), np.random.rand()
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]


def test_generators_go_on_where_they_were():
    a, b = Generators(0, "dropout"), Generators(0, "dropout")
    with a:
        whole = torch.rand(4)
    parts = []
    for _ in range(4):
        with b:
            parts.append(torch.rand(1))
        torch.rand(5)
    assert torch.equal(whole, torch.cat(parts))
    with Generators(1, "dropout"):
        assert not torch.equal(whole, torch.rand(4))


def test_starts_by_seed_and_networks_of_ones_own():
    task = make()
    a, b, c = task.start(0), task.start(0), task.start(1)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a[0].weight, c[0].weight)
    shared = network()
    handed_out = make(model=shared), make(model=lambda: shared)
    for task in handed_out:
        with torch.no_grad():
            task.start(0)[0].weight.zero_()
        assert bool((task.start(0)[0].weight != 0).any())


def test_an_evaluation_is_in_evaluation_mode_and_changes_nothing():
    """By hand, with running statistics and without dropout; modes and buffers are as before, a frozen part's mode too."""
    task = make()
    model = task.start(0)
    model[1].eval()
    model[1].running_mean.fill_(0.5)
    before = {name: b.clone() for name, b in model.state_dict().items()}
    found = task.evaluate(model, "test")
    assert [m.training for m in model] == [True, False, True, True, True]
    assert all(torch.equal(before[name], b) for name, b in model.state_dict().items())
    model.eval()
    with torch.no_grad():
        out = model(X[20:])
    assert found[0] == pytest.approx(float(functional.cross_entropy(out, Y[20:])), rel=1e-6)
    assert found[1] == pytest.approx(float((out.argmax(-1) == Y[20:]).float().mean()))


def test_means_are_weighted_by_rows():
    """20 rows in batches of 8, 8, 4: the mean over rows, not over batches (float32)."""
    whole, parts = make(), make(evaluation_batch_size=8)
    model = whole.start(0)
    assert parts.evaluate(model, "validation") == pytest.approx(whole.evaluate(model, "validation"), rel=1e-6)
    heavier = make(evaluation_batch_size=8)
    heavier.rows = lambda batch: float(batch[1].sum())
    assert heavier.evaluate(model, "validation") != pytest.approx(whole.evaluate(model, "validation"), rel=1e-6)


class Carrying(nn.Module):
    """A recurrent net with a state that it carries from batch to batch, of another shape in evaluations."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.RNNCell(4, 3), nn.Linear(3, 2)
        self.register_buffer("h", torch.zeros(8, 3))

    def forward(self, x):
        h = self.h if len(self.h) == len(x) else x.new_zeros(len(x), 3)
        h = self.cell(x, h)
        self.h = h.detach()
        return self.out(h)


def test_carried_state_is_the_runs_own():
    class Recurrent(sandbox.Task):
        name, steps, batch_size = "rnn", 5, 8
        metrics = {"accuracy": accuracy}

        def model(self):
            return Carrying()

        def data(self, split):
            return X, Y

        def loss(self, model, batch):
            return loss(model, batch)

        def begin(self, model, split):
            model.h = torch.zeros(8, 3)

    task = Recurrent()
    model = task.start(0)
    model(X[:8])
    h = model.h.clone()
    buffer = model.h
    a = task.evaluate(model, "validation")
    assert torch.equal(model.h, h)
    assert model.h is buffer
    model(X[8:16])
    assert not torch.equal(model.h, h)
    assert task.evaluate(model, "validation") == a  # whatever was carried
    begun = []
    task.begin = lambda model, split: begun.append(split)
    list(itertools.islice(task.stream(0, model), 13))
    assert begun == ["train"] * 3  # 50 rows are 6 batches of 8


def test_functions_of_parameters():
    """`apply` puts others in place of the parameters for one call, buffers too; gradients are those of the network."""
    task = make(model=lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    model, batch = task.start(0), (X[:5], Y[:5])
    params = {name: p.detach() for name, p in model.named_parameters()}
    grads = torch.func.grad(lambda p: task.apply(task.loss, p, batch))(params)
    task.loss(model, batch).backward()
    for name, p in model.named_parameters():
        assert torch.equal(p.grad, grads[name])
    zero = {name: torch.zeros_like(p) for name, p in params.items()}
    assert float(task.apply(task.loss, zero, batch)) == pytest.approx(np.log(2), rel=1e-6)
    assert float(task.apply(task.loss, params, batch)) == float(task.loss(model, batch).detach())


def test_lengths():
    assert (make().epoch, make().steps) == (6, 12)
    assert make(train=DataLoader(TensorDataset(X, Y), 8), batch_size=None).steps == 14
    assert make(steps=9, epochs=None).steps == 9
    assert make().metric == "accuracy"
    assert make().higher_is_better
    assert not make(metrics={"error": accuracy}, lower_is_better=["error"]).higher_is_better
    assert make(metrics=None).metric == "loss"
    with pytest.raises(ValueError, match="say steps="):
        _ = make(train=lambda seed: [(X, Y)]).steps


def test_groups():
    decayed, rest = tasks.no_decay(network())
    assert [name for name, _ in decayed["params"]] == ["0.weight", "4.weight"]
    assert [name for name, _ in rest["params"]] == ["0.bias", "1.weight", "1.bias", "4.bias"]
    assert rest["weight_decay"] == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(train=3), "train must be a DataLoader"),
        (dict(train=(X, Y[:3])), "equally many rows"),
        (dict(batch_size=None), "batch_size must be a whole number"),
        (dict(batch_size=0), "batch_size must be a whole number"),
        (dict(epochs=None), "either epochs= or steps="),
        (dict(steps=3), "either epochs= or steps="),
        (dict(epochs=0), "epochs must be a whole number of at least 1"),
        (dict(name=None), "a task needs name="),
        (dict(validation=None), "a task needs validation="),
        (dict(model=3), "model must be a function"),
        (dict(lower_is_better=["acuracy"]), "did you mean 'accuracy'"),
        (dict(train=DataLoader(TensorDataset(X), num_workers=1, persistent_workers=True)), "persistent_workers"),
    ],
)
def test_bad_input(change, says):
    with pytest.raises((TypeError, ValueError), match=says):
        make(**change)


def test_bad_input_found_later():
    with pytest.raises(TypeError, match=r"must return a torch\.nn\.Module, it returned a int"):
        make(model=lambda: 3).start(0)
    with pytest.raises(ValueError, match="at least one batch an epoch"):
        next(make(train=lambda seed: []).batches(0))
    with pytest.raises(ValueError, match="split must be one of"):
        make().evaluate(network(), "tset")


def test_lazy_modules():
    """Refused where the network is given, or else before any run; a module that has seen a batch is no longer lazy."""
    words = "'net': weight of its network has no shape yet: give the lazy module its sizes"
    with pytest.raises(ValueError, match=words):
        make(model=nn.LazyLinear(2))
    with pytest.raises(ValueError, match=words):
        sandbox.compare(["sgd", "adamw"], make(model=lambda: nn.LazyLinear(2)), seeds=2)
    with pytest.raises(ValueError, match="running_mean of its network has no shape yet"):
        make(model=nn.LazyBatchNorm1d(affine=False))

    def called():
        network = nn.LazyLinear(2)
        network(X)
        return network

    assert make(model=called).start(0).weight.shape == (2, 4)
