"""Properties of bases and of solvers for matrices, and recipes that combine them with a curvature from elsewhere."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

import sandbox
import variants
from sandbox.blocks import (
    EMA,
    AdamWDecay,
    Graft,
    Kronecker,
    Orthogonalize,
    SOAPBasis,
    SoftAbsolute,
    Standard,
    WeakSecant,
    block,
)
from sandbox.blocks.base import LEFT, RIGHT
from sandbox.blocks.basis import TwoSided
from sandbox.blocks.orthogonal import orthogonal
from sandbox.forms import toml
from sandbox.recipe import analysis
from sandbox.tasks.nonconvex import DigitsMLP
from tests.problem import Problem

APOLLO = variants.get("apollo")


@block
class Fixed(TwoSided):
    """v' = Q_Lᵀ v Q_R with the Q that the state holds."""

    every: int = 1
    limit: int = 100
    state = {"QL": LEFT, "QR": RIGHT}


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def run(recipe, theta, grads, state=None, lr=0.01):
    state = recipe.init(theta) if state is None else state
    for g in grads:
        state, theta = recipe.update(state, theta, g, lr=lr)
    return theta


def test_the_identity_basis_is_standard():
    """Bitwise, all of Apollo's parts inside; and SOAP in it is Adam."""
    theta, grads = drawn(4, 3), [drawn(4, 3, seed=k) for k in range(1, 9)]
    stored = APOLLO.replace(decay=sandbox.blocks.Decoupled(weight_decay=0.1), projection=sandbox.blocks.Box(low=-9.0, high=9.0))
    assert stored.analysis.stores_direction
    assert torch.equal(run(stored, theta, grads), run(stored.replace(basis=Fixed()), theta, grads))
    soap, adam = variants.get("soap"), variants.get("adam").replace(**{"moment.beta": 0.95, "curvature.beta": 0.95})
    inside = soap.replace(basis=Fixed(), **{"decay.weight_decay": 0.0})
    torch.testing.assert_close(run(inside, theta, grads), run(adam, theta, grads), rtol=1e-6, atol=1e-8)  # ε apart
    assert run(soap.replace(basis=Standard()), theta, grads).shape == (4, 3)


def rotation(n, seed):
    return torch.linalg.qr(drawn(n, n, seed=seed))[0]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31 - 10), name=st.sampled_from(["shampoo", "soap", "muon"]))
def test_rotations_before_are_rotations_after(seed, name):
    """θ → U θ Vᵀ: nothing in these methods knows the coordinates.  Roots of factors of condition 1e4 amplify 1e-16."""
    recipe = variants.get(name).replace(**{"decay.weight_decay": 0.0} if name != "shampoo" else {})
    U, V = rotation(4, seed), rotation(3, seed + 1)
    theta, grads = drawn(4, 3, seed=seed + 2), [drawn(4, 3, seed=seed + k) for k in range(3, 9)]
    turned = run(recipe, U @ theta @ V.T, [U @ g @ V.T for g in grads])
    torch.testing.assert_close(turned, U @ run(recipe, theta, grads) @ V.T, rtol=1e-5, atol=1e-6)
    adam = variants.get("adam")
    assert not torch.allclose(run(adam, U @ theta @ V.T, [U @ g @ V.T for g in grads]), U @ run(adam, theta, grads) @ V.T)


@settings(max_examples=25, deadline=None)
@given(values=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5), tall=st.booleans(), seed=st.integers(0, 2**31 - 3))
def test_singular_values_after_five_steps(values, tall, seed):
    """From [0.01, 1] relative to the norm into [0.68, 1.14]; singular vectors stay.  1e-9: five matrix products."""
    values = torch.tensor(values, dtype=torch.float64)
    n = len(values)
    U, V = rotation(n + 2, seed)[:, :n], rotation(n, seed + 1)
    X = U @ torch.diag(values) @ V.T
    X = X if tall else X.T
    relative = values / values.norm()
    after = torch.linalg.svdvals(orthogonal(X, 5))
    kept = relative >= 0.01
    inside = (after > 0.6817) & (after < 1.1345)
    assert int(inside.sum()) >= int(kept.sum())
    mine = U.T @ (orthogonal(X, 5) if tall else orthogonal(X, 5).T) @ V
    torch.testing.assert_close(mine, torch.diag(mine.diagonal()), rtol=0, atol=1e-9)


def test_the_exact_polar_factor():
    p = drawn(5, 3)
    recipe = variants.get("muon").replace(solve=Orthogonalize(exact=True, scale="none"))
    after = run(recipe, torch.zeros(5, 3, dtype=torch.float64), [p], lr=1.0)
    torch.testing.assert_close(after.T @ after, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(-after.T @ p, _root(p.T @ p), rtol=0, atol=1e-11)


def _root(S):
    a, Q = torch.linalg.eigh(S)
    return Q @ torch.diag(a.sqrt()) @ Q.T


@pytest.mark.parametrize("method", ["sgd", "adagrad", "rmsprop"])
def test_grafting(method):
    """Shampoo's direction, as long as the other method's step."""
    plain = variants.get("shampoo")
    recipe = plain.replace(solve=Graft(method=method))
    theta, grads = drawn(4, 3), [drawn(4, 3, seed=k) for k in range(1, 6)]
    before = run(recipe, theta, grads[:-1])
    state, one = recipe.init(theta), theta
    for g in grads[:-1]:
        state, one = recipe.update(state, one, g, lr=0.01)
    assert torch.equal(one, before)
    _, after = recipe.update(state, one, grads[-1], lr=0.01)
    step = (before - after) / 0.01
    squares = sum(g.square() for g in grads)
    v = sum(0.01 * 0.99 ** (4 - k) * g.square() for k, g in enumerate(grads))
    D = {"sgd": torch.ones(4, 3, dtype=torch.float64), "adagrad": squares.sqrt() + 1e-8, "rmsprop": v.sqrt() + 1e-8}[method]
    assert math.isclose(float(step.norm()), float((grads[-1] / D).norm()), rel_tol=1e-10)
    L, R = (1e-4 * torch.eye(n, dtype=torch.float64) for n in (4, 3))
    for g in grads:
        L, R = L + g @ g.T, R + g.T @ g
    direction = _root(_root(L)).inverse() @ grads[-1] @ _root(_root(R)).inverse()
    assert math.isclose(float((step * direction).sum() / step.norm() / direction.norm()), 1.0, rel_tol=1e-9)


COMBINED = {
    "the weak secant in Shampoo's eigenbasis": APOLLO.replace(
        basis=Kronecker(beta=0.95, every=3), curvature=WeakSecant(eps=0.0)
    ),
    "and in SOAP's": APOLLO.replace(
        basis=SOAPBasis(beta=0.95, every=3), curvature=WeakSecant(eps=0.0), decay=AdamWDecay(weight_decay=0.1)
    ),
    "an orthogonal quasi-Newton direction": variants.get("muon").replace(
        moment=EMA(beta=0.9), curvature=WeakSecant(eps=0.0), rectifier=SoftAbsolute(sigma=0.1)
    ),
}


class Narrow(DigitsMLP):
    """Eight hidden units: the eigenvectors of larger factors would take seconds."""

    def build(self):
        return torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))


@pytest.mark.parametrize("name", COMBINED)
def test_combinations(name):
    """The backends agree (1e-8: eigenvectors of matrices of condition 1e3), vmap too, and the texts come back."""
    recipe = COMBINED[name]
    assert toml.loads(toml.dumps(recipe)) == recipe
    assert "basis" in str(recipe) or "solve" in str(recipe)
    ends = []
    for backend in ("eager", "scripted"):
        problem = Problem(shapes=[(4, 3), (5,), (3, 4)])
        params = problem.tensors()
        optimizer = sandbox.Optimizer(params, recipe, lr=1e-3, backend=backend)
        optimizer.watch = sandbox.probes.Watch(every=3)
        for step in range(7):
            problem.set_gradients(step, params)
            optimizer.step()
        assert len(optimizer.watch.rows) > 0
        assert all(
            row["value"] < 1e-6 for row in optimizer.watch.rows if row["probe"] == "secant_residual" and row["tensor"] == "0.0"
        )
        ends.append([p.detach() for p in params])
    for p, q in zip(*ends, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-9)
    found = sandbox.ensemble.run(recipe, Narrow(), lr=[1e-3, 1e-2], steps=2)
    assert found.looped == {}
    alone = sandbox.ensemble.run(recipe, Narrow(), lr=[1e-2], steps=2)
    torch.testing.assert_close(torch.tensor(found.loss[1]), torch.tensor(alone.loss[0]), rtol=1e-4, atol=1e-5)


def test_a_side_beyond_the_limit():
    recipe = variants.get("soap").replace(basis=SOAPBasis(limit=4))
    state = recipe.init([drawn(4, 3), drawn(5, 2), drawn(3)])
    assert ["basis.QL" in s for s in state] == [True, False, False]
    assert analysis.state_elements(recipe, [(5, 2), (3,)]) == 2
    assert analysis.state_elements(recipe, [(4, 2)]) == 2 + 2 * (16 + 4) / 8


def test_the_last_gradient_is_kept_in_standard_coordinates():
    """A basis that turns between two steps sees the change of the gradient, and not of its own coordinates."""
    recipe, seen = variants.get("adan").replace(basis=Kronecker(beta=0.5, eps=1e-3)), []
    theta, grads = drawn(4, 3), [drawn(4, 3, seed=k) for k in (1, 2, 3)]
    state = recipe.init(theta)
    for g in grads:
        before = state["gradient.g"]
        state, theta = recipe.update(state, theta, g, observe=lambda i, x: seen.append((x.g_old, x.g)))
        QL, QR = state["basis.QL"], state["basis.QR"]
        torch.testing.assert_close(seen[-1], (QL.mT @ before @ QR, QL.mT @ g @ QR), rtol=1e-12, atol=1e-13)
        assert torch.equal(state["gradient.g"], g)


def test_eigenvalues_are_at_least_epsilon_on_both_sides():
    """Of averages of a gradient of rank one, which forget the εI that they begin with."""
    recipe = variants.get("shampoo").replace(basis=Kronecker(beta=0.5, eps=0.25), **{"rectifier.eps": 0.1})
    theta = torch.zeros(4, 3, dtype=torch.float64)
    state, g = recipe.init(theta), torch.ones(4, 3, dtype=torch.float64)
    for _ in range(5):
        state, theta = recipe.update(state, theta, g)
    assert float(torch.linalg.eigvalsh(state["basis.R"])[0]) == pytest.approx(0.25 / 2**5)
    for name, largest in (("basis.a", 12.0), ("basis.b", 12.0)):
        values = state[name].flatten()
        torch.testing.assert_close(values[:-1], torch.full_like(values[:-1], 0.25), rtol=1e-12, atol=0)
        assert float(values[-1]) == pytest.approx(largest * (1 - 2**-5) + 0.25 / 2**5)


class Counting(TorchFunctionMode):
    """Counts the calls of one function of torch."""

    def __init__(self, function):
        super().__init__()
        self.function, self.calls = function, 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += function is self.function
        return function(*args, **(kwargs or {}))


def test_what_is_due_is_computed_only_then():
    """Decompositions at steps 1, 4, 7, … where the step's number is known, the same trajectory where it is not."""
    recipe = variants.get("shampoo").replace(basis=Kronecker(every=3, eps=1e-2))
    theta, grads = drawn(4, 3), [drawn(4, 3, seed=k) for k in range(1, 8)]
    together = torch.func.vmap(lambda x: run(recipe, x, grads))(theta[None])[0]
    with Counting(torch.linalg.eigh) as counted:
        alone = run(recipe, theta, grads)
    assert counted.calls == 2 * 3
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)
