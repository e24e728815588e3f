"""One recipe for matrices, another for tensors with fewer than two axes: the same as two groups of two recipes."""

import copy

import pytest
import torch

import sandbox
import variants
from sandbox.blocks import EMA, Decoupled
from sandbox.forms import toml
from sandbox.recipe import analysis
from tests.light import BACKENDS
from tests.problem import Problem

SHAPES = [(4, 3), (7,), (), (2, 3, 2), (5,)]
ADAM = variants.get("adamw").replace(lr=0.002)
PAIR = variants.get("apollo").replace(vectors=ADAM, decay=Decoupled(weight_decay=0.1))  # η 0.01 beside 0.002


def trained(make, steps=14, backend="eager"):
    problem = Problem(shapes=SHAPES)
    params = problem.tensors()
    optimizer = make(params, backend)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(steps):
        problem.set_gradients(step, params)
        optimizer.step()
        scheduler.step()
    return [p.detach().clone() for p in params], optimizer


def in_two_groups(params, backend):
    """At lr 0.05, so that vectors have a fifth of it."""
    matrices, vectors = ([p for p in params if (p.ndim < 2) == few] for few in (False, True))
    groups = [{"params": matrices, "recipe": PAIR.matrices}, {"params": vectors, "recipe": ADAM, "lr": 0.01}]
    return sandbox.Optimizer(groups, PAIR.matrices, lr=0.05, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_as_in_two_groups(backend):
    """Bitwise in eager: the same steps.  Layouts of the others have other neighbours (1e-12)."""
    one, _ = trained(lambda p, b: sandbox.Optimizer(p, PAIR, lr=0.05, backend=b), backend=backend)
    two, _ = trained(in_two_groups)
    for p, q in zip(one, two, strict=True):
        if backend == "eager":
            assert torch.equal(p, q)
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-12)


def test_pure_and_under_vmap():
    """Every member of a grid of rates is its own run; η of vectors moves with it."""
    problem = Problem(shapes=SHAPES)
    grads = [[torch.tensor(g) for g in problem.gradient(step, problem.start)] for step in range(6)]
    start = [torch.tensor(x) for x in problem.start]

    def run(lr):
        state, params = PAIR.init(start), start
        for row in grads:
            state, params = PAIR.update(state, params, row, lr=lr)
        return params

    rates = torch.tensor([0.05, 0.001], dtype=torch.float64)
    together = torch.func.vmap(run)(rates)
    for i, lr in enumerate(rates.tolist()):
        for p, q in zip(together, run(lr), strict=True):
            torch.testing.assert_close(p[i], q, rtol=1e-12, atol=1e-14)
    params = [p.clone().requires_grad_() for p in start]
    optimizer = sandbox.Optimizer(params, PAIR, lr=0.05)
    for row in grads:
        for p, g in zip(params, row, strict=True):
            p.grad = g
        optimizer.step()
    for p, q in zip(params, run(0.05), strict=True):
        torch.testing.assert_close(p.detach(), q, rtol=1e-12, atol=1e-14)
    found = sandbox.ensemble.run([PAIR, PAIR.replace(**{"vectors.moment.beta": 0.5})], "digits-mlp", lr=[0.01], steps=3)
    assert found.looped == {}
    assert found.members["vectors.moment.beta"].to_list() == [0.9, 0.5]
    alone = sandbox.ensemble.run(PAIR.replace(**{"vectors.moment.beta": 0.5}), "digits-mlp", lr=[0.01], steps=3)
    torch.testing.assert_close(torch.tensor(found.loss[1]), torch.tensor(alone.loss[0]), rtol=1e-5, atol=1e-6)


def test_under_the_global_scope_matrices_and_vectors_have_each_their_own():
    """One update of all tensors is an update of the matrices and one of the vectors, bitwise."""
    bare = variants.get("apollo").replace(scope="global", moment=EMA(beta=0.0))  # so that B leaves the floor
    pair = bare.replace(vectors=bare)
    draw = torch.Generator().manual_seed(0)
    start, *rows = ([torch.randn(s, dtype=torch.float64, generator=draw) for s in SHAPES] for _ in range(6))
    places = [[i for i, p in enumerate(start) if (p.ndim < 2) == few] for few in (False, True)]

    def run(recipe, params, places):
        state = recipe.init(params)
        for row in rows:
            state, params = recipe.update(state, params, [row[i] for i in places], lr=0.01)
        return params

    together = run(pair, start, range(len(start)))
    for recipe, mine in zip((pair.matrices, pair.vectors), places, strict=True):
        alone = run(recipe, [start[i] for i in mine], mine)
        assert all(torch.equal(together[i], p) for i, p in zip(mine, alone, strict=True))


def test_a_checkpoint_and_a_change_on_the_way():
    one, _ = trained(lambda p, b: sandbox.Optimizer(p, PAIR, lr=0.05), steps=10)
    problem = Problem(shapes=SHAPES)
    params = problem.tensors()
    optimizer = sandbox.Optimizer(params, PAIR, lr=0.05)
    for step in range(10):
        if step == 4:
            saved = optimizer.state_dict()
            optimizer = sandbox.Optimizer(params, PAIR, lr=1.0, backend="scripted")
            optimizer.load_state_dict(saved)
        if step == 7:
            params, optimizer = copy.deepcopy((params, optimizer))
        problem.set_gradients(step, params)
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9
    for p, q in zip(params, one, strict=True):
        torch.testing.assert_close(p.detach(), q, rtol=1e-11, atol=1e-12)
    with pytest.raises(ValueError, match=r"differs .* in vectors"):
        sandbox.Optimizer(params, PAIR.replace(vectors=variants.get("sgd"))).load_state_dict(saved)


def test_numbers_and_texts():
    numbers = PAIR.hyperparameters()
    assert (numbers["lr"], numbers["vectors.lr"], numbers["vectors.moment.beta"]) == (0.01, 0.002, 0.9)
    changed = PAIR.replace(**{"vectors.moment.beta": 0.5})
    assert changed.vectors.moment == type(ADAM.moment)(beta=0.5)
    assert toml.loads(toml.dumps(changed)) == changed
    assert toml.fingerprint(changed) != toml.fingerprint(PAIR)
    assert "vectors" not in toml.dumps(variants.get("apollo"))
    text, inner = str(PAIR).split("  tensors with fewer than two axes: ")
    assert text.startswith("apollo[")
    assert inner.splitlines()[0].startswith(ADAM.name)
    assert PAIR._repr_markdown_().count("aligned") == 4
    assert analysis.state_elements(PAIR, [(4, 3), (7,)]) == 2
    assert analysis.state_elements(variants.get("muon"), [(4, 3), (7,)]) == (12 + 14) / 19
    p = torch.ones(3, requires_grad=True)
    group = sandbox.Optimizer([p], PAIR, weight_decay=0.0).param_groups[0]
    assert group["vectors.decay.weight_decay"] == group["weight_decay"] == 0.0
    group = sandbox.Optimizer([{"params": [p], "weight_decay": 0.0}], PAIR, **{"vectors.decay.weight_decay": 0.3}).param_groups[
        0
    ]
    assert (group["vectors.decay.weight_decay"], group["weight_decay"]) == (0.3, 0.0)


def test_what_does_not_fit(tmp_path):
    with pytest.raises(TypeError, match="vectors must be a Recipe"):
        PAIR.replace(vectors="adam")
    with pytest.raises(TypeError, match="no vectors of its own"):
        PAIR.replace(vectors=PAIR)
    with pytest.raises(ValueError, match="both must be numbers"):
        PAIR.replace(lr=lambda t: 0.1)
    with pytest.raises(ValueError, match="the recipe's above 0"):
        PAIR.replace(lr=0.0)
    for write in (lambda: sandbox.script(PAIR, tmp_path / "no.pt"), lambda: sandbox.export(PAIR)):
        with pytest.raises(ValueError, match="one program cannot be both"):
            write()
    with pytest.raises(ValueError, match=r"unknown number 'vectors.moment.bet'.*vectors.moment.beta"):
        PAIR.replace(**{"vectors.moment.bet": 0.5})
    with pytest.raises(TypeError, match="slot 'moment' does not take"):
        PAIR.replace(moment=Decoupled())
    assert PAIR.replace(moment=EMA(beta=0.5)).vectors is ADAM


def test_an_ensemble_of_a_recipe_for_matrices_alone():
    """Shampoo has no step for vectors without `vectors`, and needs none where there are only matrices.  As the pure update (1e-10:
    eigenvectors of a batch of matrices)."""
    recipe, start = variants.get("shampoo").matrices, torch.arange(6.0, dtype=torch.float64).view(3, 2)
    rates = [0.1, 0.2]
    found = sandbox.ensemble.run(recipe, lambda theta, batch: (theta - 1).square().sum(), lr=rates, params=start, steps=4)
    for lr, losses in zip(rates, found.loss, strict=True):
        state, theta = recipe.init(start), start
        for loss in losses:
            assert float(loss) == pytest.approx(float((theta - 1).square().sum()), rel=1e-10)
            state, theta = recipe.update(state, theta, 2 * (theta - 1), lr=lr)
