"""Optimizers inside what torch.compile compiles: a training step as users write it."""

import inspect
import warnings

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

import sandbox
from tests.optimizer.network import loss_of, network

SCHEDULERS = {
    "linear": lambda optimizer: schedulers.LinearLR(optimizer, total_iters=5),
    "one cycle": lambda optimizer: schedulers.OneCycleLR(optimizer, max_lr=0.05, total_steps=10),
    "plateau": lambda optimizer: schedulers.ReduceLROnPlateau(optimizer, patience=0),
}


@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("whole", [True, False], ids=["training step", "optimizer.step"])
def test_a_compiled_training_step_is_torchs(schedule, whole):
    """The optimizer adds no graph to the model's, rates and momenta that schedulers move compile nothing anew."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def train(make, compile):
        model = network()
        optimizer = make(model.parameters(), lr=torch.tensor(0.01, dtype=torch.float64), weight_decay=0.1)
        scheduler = SCHEDULERS[schedule](optimizer)
        update = compile(optimizer.step) if not whole else optimizer.step

        def step():
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            update()
            return loss

        step = compile(step) if whole else step
        for _ in range(6):
            loss = step()
            scheduler.step(*[float(loss.detach())] * (schedule == "plateau"))
        return [p.detach() for p in model.parameters()]

    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mine = train(lambda *p, **k: sandbox.Optimizer(*p, "adamw", **k), lambda f: torch.compile(f, backend=backend))
    torchs = train(torch.optim.AdamW, lambda f: f)
    assert not [str(w.message) for w in caught if "recipe" in str(w.message) or "lru_cache" in str(w.message)]
    assert len(graphs) <= 2  # forward; and where dynamo compiles what resumes after a break
    # rounding of six steps: torch's AdamW divides by other intermediate results
    for p, q in zip(mine, torchs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


def test_the_signature_of_a_step_is_that_of_any_optimizer():
    assert list(inspect.signature(sandbox.Optimizer.step).parameters) == ["self", "closure"]
    optimizer = sandbox.Optimizer([torch.ones(1, requires_grad=True)], "apollo")
    assert list(inspect.signature(optimizer.step).parameters) == ["closure"]
