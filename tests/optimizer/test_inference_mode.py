"""Optimizers made, loaded, copied and stepped under torch.inference_mode."""

import pytest
import torch
from torch import nn

import sandbox
from tests.optimizer.network import loss_of, network


@pytest.mark.parametrize("backend", ["eager", "reference", "scripted", "compiled"])
@pytest.mark.parametrize("name", ["adamw", "adahessian", "schedule-free-adamw"])
@pytest.mark.parametrize("under", ["construction", "steps", "loading", "copying", "readout"])
def test_inference_mode_changes_nothing(under, name, backend):
    """The same run with one part of it under inference_mode and without; torch's own AdamW cannot go on after such a step."""

    def run(mode):
        def within(part, call):
            with torch.inference_mode(mode and part == under):
                return call()

        model = network()
        optimizer = within("construction", lambda: sandbox.Optimizer(model.parameters(), name, lr=0.01, backend=backend))
        for step in range(4):
            optimizer.zero_grad()
            if name == "adahessian":
                within("steps", lambda: optimizer.step(lambda: loss_of(model)))
            else:
                loss_of(model).backward()
                within("steps", optimizer.step) if step < 2 else optimizer.step()
            if step == 1:
                within("loading", lambda: optimizer.load_state_dict(optimizer.state_dict()))
                states = within(
                    "copying", lambda: [{k: v.clone() for k, v in optimizer.state[p].items()} for p in model.parameters()]
                )
                for p, state in zip(model.parameters(), states, strict=True):
                    optimizer.state[p] = state
                within("readout", optimizer.eval)
                within("readout", optimizer.train)
        return [p.detach() for p in model.parameters()]

    assert all(map(torch.equal, run(True), run(False)))


def test_parameters_made_under_inference_mode_are_refused():
    with torch.inference_mode():
        model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"'weight' was made under torch\.inference_mode"):
        sandbox.Optimizer(model.named_parameters(), "apollo")
