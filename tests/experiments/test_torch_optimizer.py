"""Torch optimizers as methods: the same numbers as by hand, every evaluation counted, and clear errors."""

import pytest
import torch
from torch import nn

import sandbox
import variants
from sandbox import tasks
from sandbox.experiments.runs.methods import method
from sandbox.experiments.runs.run import Run
from sandbox.experiments.runs.torch_optimizer import TorchOptimizer, parse
from sandbox.experiments.runs.training import train
from sandbox.experiments.settings import Options
from tests.experiments import networks


def run(**changes):
    return Run(**{**dict(task="", method="", lr=0.01, seed=1, role="final", steps=12, at=(6, 12)), **changes})


def test_adamw_outside_and_inside_are_equal():
    """float64, 12 steps: to rounding, 1e-12."""
    task = tasks.get("logistic-breast-cancer", dtype=torch.float64)
    outside = train(task, method("torch.optim:AdamW(weight_decay=0.01)"), run())
    inside = train(task, method("adamw"), run())
    for a, b in zip(outside, inside, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-12)
        assert (a["gradients"], a["state_words"] if a["step"] else 2) == (b["gradients"], b["state_words"])


@pytest.mark.parametrize(
    "text", ["torch.optim:SGD(momentum=0.9)", "torch.optim:Adafactor(lr=0.01)", "torch.optim:Muon(momentum=0.9)"]
)
def test_torchs_optimizers_by_hand(text):
    """The network's parameters after seven updates, bitwise."""
    task, made = networks.Net(), method(text)
    ends = []
    original = task.evaluate

    def kept(model, split):
        ends.append([p.detach().clone() for p in model.parameters()])
        return original(model, split)

    task.evaluate = kept
    train(task, made, run(steps=7, at=(7,)))
    from sandbox.tasks.streams import Generators

    model, noise, batches = task.start(1), Generators(1, "noise"), networks.Net().batches(1)
    matrices, vectors = ([p for p in model.parameters() if (p.ndim == 2) == is_matrix] for is_matrix in (True, False))
    if "Muon" in text:
        *hidden, head = matrices
        first = torch.optim.Muon(hidden, lr=0.01, momentum=0.9)
        groups = [{"params": [head]}, {"params": vectors, "weight_decay": 0.0}]
        rest = sandbox.Optimizer(groups, "adamw", lr=0.01)  # both default rates are 0.001
        optimizers = [first, rest]
    else:
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        kind = torch.optim.SGD if "SGD" in text else torch.optim.Adafactor
        optimizers = [kind(groups, lr=0.01, **({"momentum": 0.9} if "SGD" in text else {}))]
    for _ in range(7):
        batch = next(batches)
        with noise:
            model.zero_grad()
            networks.cross_entropy(model, batch).backward()
            for optimizer in optimizers:
                optimizer.step()
    for a, b in zip(ends[-1], model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_closures_are_counted():
    """LBFGS evaluates as often as it likes; a second-order recipe's Hessian-vector product counts as one."""
    task, calls = tasks.get("quadratic", dtype=torch.float64), []
    original = task.loss
    task.loss = lambda params, batch: calls.append(torch.is_grad_enabled()) or original(params, batch)
    rows = train(task, method("torch.optim:LBFGS(lr=0.1, max_iter=4)"), run(steps=5, at=(5,)))
    assert rows[-1]["gradients"] == sum(calls)
    assert 5 < rows[-1]["gradients"] <= 5 * 5
    assert train(task, method("adahessian"), run(steps=5, at=(5,)))[-1]["gradients"] == 10
    assert train(task, method("sgd"), run(steps=5, at=(5,), options=Options(accumulate=3)))[-1]["gradients"] == 15


def test_every_evaluation_of_a_step_sees_the_same_noise():
    class Twice(torch.optim.SGD):
        def step(self, closure):
            Twice.seen = [float(closure()) for _ in range(2)]
            return super().step(lambda: torch.tensor(0.0))

    train(networks.Net(), TorchOptimizer(Twice, lr=1e-3), run(steps=2, at=(2,)))
    assert Twice.seen[0] == Twice.seen[1]


def test_modes_are_called():
    class Moded(torch.optim.SGD):
        said = []

        def train(self):
            Moded.said.append("train")

        def eval(self):
            Moded.said.append("eval")

    train(tasks.get("quadratic"), TorchOptimizer(Moded, lr=1e-3), run(steps=4, at=(2, 4)))
    assert Moded.said[:3] == ["train", "eval", "train"]
    assert Moded.said.count("eval") == 3 * 2 + 1  # two splits at three evaluations, and the test split once


def test_accumulated_gradients_are_means_over_batches():
    """Two batches of ten are one of twenty, for a loss that is a mean (float32)."""

    def task(size, batches):
        return sandbox.Task(
            name="t", model=lambda: nn.Linear(6, 2), train=lambda seed: batches, validation=(networks.X, networks.Y),
            loss=networks.cross_entropy, steps=3,
        )  # fmt: skip

    X, Y = networks.X, networks.Y
    small = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 60, 10)]
    large = [(X[i : i + 20], Y[i : i + 20]) for i in range(0, 60, 20)]
    a = train(task(10, small), method("sgd"), run(steps=3, at=(3,), options=Options(accumulate=2)))
    b = train(task(20, large), method("sgd"), run(steps=3, at=(3,)))
    assert a[-1]["validation_loss"] == pytest.approx(b[-1]["validation_loss"], rel=1e-6)


def test_what_is_said_in_words():
    made = parse("torch.optim:SGD(lr=0.5, momentum=0.9)")
    assert (made.lr, made.name, made.options) == (0.5, "SGD", {"momentum": 0.9})
    assert parse("torch.optim:AdamW").lr == 1e-3
    assert parse("apollo") is None
    assert parse("tests.outside_blocks:recipe") is None
    assert TorchOptimizer(torch.optim.SGD, lr=0.1).fingerprint() == TorchOptimizer(torch.optim.SGD, lr=0.2).fingerprint()
    assert TorchOptimizer(torch.optim.SGD, momentum=0.5).fingerprint() != TorchOptimizer(torch.optim.SGD).fingerprint()
    assert made.replaced({"momentum": 0.5}).options == {"momentum": 0.5}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: parse("torch.optim:SGD(0.1)"), "write literal keyword arguments"),
        (lambda: parse("torch.optim:SGD(lr=f)"), "write literal keyword arguments"),
        (lambda: parse("torch.optim:SGDM(lr=1)"), "did you mean 'SGD"),
        (lambda: TorchOptimizer(3, lr=1.0), "must be a class or a function"),
        (lambda: TorchOptimizer(lambda params, lr: None), "lr must be a number above 0"),
        (lambda: TorchOptimizer(torch.optim.SGD, lr=-1.0), "lr must be a number above 0"),
        (lambda: TorchOptimizer(torch.optim.SGD, rest="adamw"), "belong together"),
        (lambda: TorchOptimizer(torch.optim.SGD, only="matrixes", rest="adamw"), "did you mean 'matrices'"),
    ],
)
def test_bad_input(make, says):
    with pytest.raises((TypeError, ValueError), match=says):
        make()


def test_the_rest_keeps_what_the_task_says_of_its_groups():
    """Rates in proportion and decays of their own; also where the rest's rate is a function of t."""
    matrix, *vectors = (torch.zeros(shape, requires_grad=True) for shape in ((2, 2), (2,), (3,)))
    groups = [
        {"params": [("matrix", matrix), ("first", vectors[0])], "lr_factor": 0.5},
        {"params": [("second", vectors[1])], "weight_decay": 0.25},
    ]
    adamw = variants.get("adamw").replace(lr=0.01)
    falling = adamw.replace(lr=lambda t: 1 / t, name="falling")
    for rest, rates in ((adamw, [0.01, 0.02]), (falling, [1.0, 2.0])):
        first, others = TorchOptimizer(torch.optim.SGD, lr=0.1, only="matrices", rest=rest).make(groups, 0.2, {})
        assert [g["lr"] for g in first.param_groups] == [0.1]
        assert [g["lr"] if rest is adamw else g["lr"](1) for g in others.param_groups] == rates
        assert [g["weight_decay"] for g in others.param_groups] == [adamw.decay.weight_decay, 0.25]
        assert [g["params"] for g in others.param_groups] == [[p] for p in vectors]
