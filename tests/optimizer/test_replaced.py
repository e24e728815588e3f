"""What others put in place of a parameter, a state or a precision."""

import copy

import pytest
import torch

import sandbox


@pytest.mark.parametrize("backend", sandbox.backends.NAMES)
def test_parameters_and_states_put_in_place_of_others_are_seen(backend):
    """Against torch's Adam, treated the same way: another parameter with the old one's state, states
    replaced by zeros, states set to zero where they are, "step" among them."""
    ends = []
    for make in (lambda p: sandbox.Optimizer(p, "adam", lr=0.1, backend=backend), lambda p: torch.optim.Adam(p, lr=0.1)):
        params = [
            torch.ones(3, dtype=torch.float64, requires_grad=True),
            torch.ones(2, dtype=torch.float64, requires_grad=True),
        ]
        optimizer = make(params)

        def step(factor, params=params, optimizer=optimizer):
            for p in params:
                p.grad = factor * torch.arange(1.0, 1 + p.numel(), dtype=torch.float64)
            optimizer.step()

        step(1.0)
        for place, size in ((0, 3), (1, 2)):  # the first, then the last: their states change places, then stay where they are
            new = torch.full((size,), 5.0, dtype=torch.float64, requires_grad=True)
            optimizer.state[new] = optimizer.state.pop(params[place])
            optimizer.param_groups[0]["params"][place] = params[place] = new
            step(-2.0)
            if place == 0:
                optimizer.state[params[1]] = optimizer.state.pop(params[1])
                step(0.3)
        for p in params:
            for name, value in optimizer.state[p].items():
                optimizer.state[p][name] = torch.zeros_like(value)
        step(3.0)
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
        step(0.5)
        ends.append([p.detach().clone() for p in params])
    for p, q in zip(*ends, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=0)


@pytest.mark.parametrize("backend", sandbox.backends.NAMES)
def test_tensors_that_catch_up_share_a_scalar_again(backend):
    """Scope global: two tensors that have made as many steps at one rate are one vector, whether the run was resumed or not."""
    ends = []
    for resumed in (False, True):
        draw = torch.Generator().manual_seed(0)
        params = [torch.randn(3, dtype=torch.float64, generator=draw, requires_grad=True) for _ in range(2)]
        optimizer = sandbox.Optimizer(params, "global-secant", lr=0.1, backend=backend)
        for step in range(7):
            if resumed and step == 3:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = sandbox.Optimizer(params, "global-secant", lr=0.1, backend=backend)
                optimizer.load_state_dict(saved)
            optimizer.param_groups[0]["lr"] = 0.1 * (step + 1)
            for i, p in enumerate(params):
                g = torch.randn(3, dtype=torch.float64, generator=draw)
                p.grad = None if step == 1 - i else g
            optimizer.step()
        ends.append([p.detach().clone() for p in params])
    for p, q in zip(*ends, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("then", [torch.float64, torch.float32])
def test_a_model_cast_between_steps(then):
    """Large tensors, compiled: as eager, in the parameter's new precision (1e-4: states rounded to float32 on the way)."""
    ends = []
    for backend in ("eager", "compiled"):
        draw = torch.Generator().manual_seed(0)
        first = torch.float32 if then == torch.float64 else torch.float64
        p = torch.nn.Parameter(torch.randn(2**17 + 5, generator=draw, dtype=first))
        optimizer = sandbox.Optimizer([p], "apollo", lr=0.01, backend=backend)
        for step in range(6):
            if step == 3:
                p.data, p.grad = p.data.to(then), None
            p.grad = torch.randn(len(p), generator=draw).to(p.dtype)
            optimizer.step()
        assert p.dtype == then
        ends.append(p.detach())
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-4)


def test_flat_parameters_are_not_cast_back():
    p = torch.ones(4, requires_grad=True)
    optimizer = sandbox.Optimizer([p], "apollo", lr=0.01, backend="compiled", flat=True)
    p.grad = torch.ones(4)
    optimizer.step()
    p.data, p.grad = p.data.double(), None
    p.grad = torch.ones(4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"flat=True: a parameter was torch.float32 on cpu and is torch.float64"):
        optimizer.step()


def test_global_scope_needs_one_precision():
    params = [torch.ones(2, dtype=d, requires_grad=True) for d in (torch.float32, torch.float64)]
    for p in params:
        p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="scope 'global' needs all tensors of a group on one device and in one precision"):
        sandbox.Optimizer(params, "global-secant").step()
