"""Parameters that share memory."""

import copy

import pytest
import torch
from torch import nn

import sandbox

BACKENDS = ["eager", "reference", "scripted", "compiled"]


def shared(kind):
    """Parameters of which some entries are in one place."""
    buffer = torch.ones(12, dtype=torch.float64)
    return {
        "expanded": lambda: [buffer[:3].expand(4, 3)],
        "windows": lambda: [buffer.as_strided((3, 3), (1, 1))],
        "tied by data": lambda: [buffer[:4], buffer[:4]],
        "overlapping": lambda: [buffer[:5], buffer[8:], buffer[4:8]],
        "a column and its matrix": lambda: [buffer.view(3, 4), buffer.view(3, 4)[:, 1]],
        "other precision": lambda: [buffer, buffer[2:4].view(torch.float32)],
    }[kind]()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "kind", ["expanded", "windows", "tied by data", "overlapping", "a column and its matrix", "other precision"]
)
def test_memory_in_common_is_refused_before_anything_changes(kind, backend):
    params = [nn.Parameter(values) for values in shared(kind)]
    optimizer = sandbox.Optimizer(params, "adamw", lr=0.1, backend=backend)
    for p in params:
        p.grad = torch.ones_like(p, memory_format=torch.contiguous_format)
    before = copy.deepcopy([*params, *(optimizer.state[p] for p in params)])
    with pytest.raises(ValueError, match="share memory"):
        optimizer.step()
    assert str([*params, *(optimizer.state[p] for p in params)]) == str(before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_of_one_buffer_are_no_memory_in_common(backend):
    """Columns between each other's, a transposed matrix and one half of a buffer, against torch's AdamW."""

    def parts():
        buffer = torch.linspace(-1, 1, 36, dtype=torch.float64)
        matrix = buffer[:24].view(4, 6)
        frozen = nn.Parameter(matrix[:, :2], requires_grad=False)
        views = [matrix[:, ::2], matrix[:, 1::2], buffer[24:].view(3, 4).t(), buffer[24:24]]
        return buffer, [*map(nn.Parameter, views), frozen]

    (mine, ps), (torchs, qs) = parts(), parts()
    optimizers = [
        sandbox.Optimizer(ps, "adamw", lr=0.1, weight_decay=0.1, backend=backend),
        torch.optim.AdamW(qs, lr=0.1, weight_decay=0.1),
    ]
    for step in range(3):
        for params, optimizer in zip((ps, qs), optimizers, strict=True):
            for p in params[:4]:
                p.grad = torch.full_like(p, step + 1.0)
            optimizer.step()
    torch.testing.assert_close(mine, torchs, rtol=1e-13, atol=1e-15)  # rounding of three steps in float64


def test_weights_tied_by_data_after_the_optimizer_was_made():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizer = sandbox.Optimizer([*a.named_parameters("a"), *b.named_parameters("b")], "adamw")
    b.weight.data = a.weight.data
    for p in (a.weight, b.weight):
        p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match=r"'a\.weight' and 'b\.weight' share memory.*one Parameter for both"):
        optimizer.step()
