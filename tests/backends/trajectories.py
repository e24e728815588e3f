"""Trajectories of an optimizer whose life has changes on the way, and how alike two are."""

import copy

import torch

import sandbox
from sandbox.forms import toml
from tests.problem import MIXED, STEPS, Torchs

ADDED, SAVED = 12, 20


def optimizer_for(recipe, params, lr, backend, groups, **options):
    cut = [params[:2], params[2:4], params[4:6], params[6:]][:groups]
    listed = [{"params": part, "lr": lr * factor} for part, factor in zip(cut, (1.0, 0.5, 0.8, 0.3), strict=False)]
    return sandbox.Optimizer(listed, recipe, backend=backend, seed=3, **options)


def trajectory(recipe, dtype, backend, then=None, **options):
    """24 steps: a scheduler, missing gradients, a fourth group at step 12, at 20 a checkpoint resumed in the backend `then`."""
    lr = 0.002
    problem, path = Torchs(dtype), []
    params = problem.params
    optimizer = optimizer_for(recipe, params, lr, backend, 3, **options)
    for step in range(STEPS):
        if step == ADDED:
            optimizer.add_param_group({"params": params[6:], "lr": 0.3 * lr})
        if step == SAVED and then is not None:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = optimizer_for(recipe, params, lr, then, 4)
            optimizer.load_state_dict(saved)
        if step == 10:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * 0.5

        def closure(step=step, optimizer=optimizer):
            optimizer.zero_grad()
            live = params if step >= ADDED else params[:6]
            loss = problem.loss(step, live)
            if not recipe.analysis.second_order:
                loss.backward()
            return loss

        optimizer.step(closure)
        path.append([p.detach().clone() for p in params])
    states = [{k: v.clone() for k, v in optimizer.state[p].items()} for p in params]
    return path, states


_REFERENCE = {}


def reference(recipe, dtype):
    key = toml.fingerprint(recipe), dtype
    if key not in _REFERENCE:
        _REFERENCE[key] = trajectory(recipe, dtype, "reference")
    return _REFERENCE[key]


def assert_alike(one, two, dtype):
    """Sums in another order; 24 steps amplify rounding, of 1e-16 to 1e-9 at most, of 6e-8 to 2e-3."""
    rtol, atol = {torch.float64: (1e-9, 1e-10), torch.float32: (2e-3, 2e-4)}[dtype]
    for step, (a, b) in enumerate(zip(one[0], two[0], strict=True)):
        for p, q in zip(a, b, strict=True):
            torch.testing.assert_close(p, q, rtol=rtol, atol=atol, msg=lambda m, step=step: f"step {step}: {m}")
    for a, b in zip(one[1], two[1], strict=True):
        assert a.keys() == b.keys()
        for name in a:
            scale = {"rtol": 100 * rtol, "atol": 100 * atol}
            torch.testing.assert_close(a[name], b[name], msg=lambda m, name=name: f"{name}: {m}", **scale)


def assert_backends_agree(recipe, steps, change, first=0, shapes=MIXED):
    """Eager, compiled and scripted end alike where change(step, problem, optimizer) comes before each step (1e-10)."""
    ends = []
    for backend in ("eager", "compiled", "scripted"):
        problem = Torchs(torch.float64, 0, shapes)
        optimizer = sandbox.Optimizer(problem.params, recipe, lr=0.002, backend=backend)
        for step in range(steps):
            change(step, problem, optimizer)
            optimizer.zero_grad()
            problem.loss(first + step, problem.params).backward()
            optimizer.step()
        ends.append([p.detach().clone() for p in problem.params])
    for other in ends[1:]:
        for p, q in zip(ends[0], other, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
