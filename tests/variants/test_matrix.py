"""Methods that take tensors as matrices, against NumPy recursions from their papers and authors' code, and published packages.

float64, forty steps, the rate cut at thirty.  Tolerance of the recursions: the same numbers in another order of operations.
"""

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.blocks.orthogonal import orthogonal
from tests.light import each_backend
from tests.problem import Problem, rate

SHAPES = [(4, 3), (7,), (), (2, 3, 2), (3, 5), (6, 2)]
STEPS = 40
BACKENDS = ["eager", pytest.param("compiled", marks=pytest.mark.slow), "scripted"]


class Adam:
    """For vectors."""

    def __init__(self, x, lr, beta1, beta2, eps):
        self.m, self.v, self.t = np.zeros_like(x), np.zeros_like(x), 0
        self.lr, self.beta1, self.beta2, self.eps = lr, beta1, beta2, eps

    def step(self, x, g, factor):
        self.t += 1
        self.m, self.v = self.beta1 * self.m + (1 - self.beta1) * g, self.beta2 * self.v + (1 - self.beta2) * g * g
        v = self.v / (1 - self.beta2**self.t)
        return x - factor * self.lr * self.m / (1 - self.beta1**self.t) / (np.sqrt(v) + self.eps)


class Muon:
    """Keller Jordan's muon.py, in the precision of its input."""

    def __init__(self, x, scale):
        self.b, self.scale = np.zeros_like(x), scale

    def step(self, x, g, lr, gamma=0.0):
        m, n = x.shape
        self.b = 0.95 * self.b + 0.05 * g
        u = 0.05 * g + 0.95 * self.b
        X = u / max(np.sqrt((u * u).sum()), 1e-7)
        for _ in range(5):
            S = X @ X.T
            X = 3.4445 * X + (-4.7750 * S + 2.0315 * S @ S) @ X
        s = {"original": np.sqrt(max(1, m / n)), "rms": 0.2 * np.sqrt(max(m, n)), "none": 1.0}[self.scale]
        return (1 - lr * gamma) * x - lr * s * X


class SM3:
    """Anil et al. 2019, algorithm SM3-II, with covers by rows and columns."""

    def __init__(self, x):
        self.mu = [np.zeros(n) for n in x.shape]

    def step(self, x, g, lr):
        covers = [np.expand_dims(mu, [a for a in range(x.ndim) if a != axis]) for axis, mu in enumerate(self.mu)]
        nu = np.minimum.reduce(np.broadcast_arrays(*covers, g)[:-1]) + g * g
        self.mu = [nu.max(axis=tuple(a for a in range(x.ndim) if a != axis)) for axis in range(x.ndim)]
        return x - lr * np.divide(g, np.sqrt(nu), out=np.zeros_like(g), where=nu > 0)


def rooted(L, k):
    """L^(-1/k) of a positive definite matrix."""
    a, Q = np.linalg.eigh(L)
    return Q @ np.diag(a ** (-1 / k)) @ Q.T


class Shampoo:
    """Gupta et al. 2018, algorithm 1."""

    def __init__(self, x, eps=1e-4):
        self.L, self.R = (eps * np.eye(n) for n in x.shape)

    def step(self, x, g, lr):
        self.L, self.R = self.L + g @ g.T, self.R + g.T @ g
        return x - lr * rooted(self.L, 4) @ g @ rooted(self.R, 4)


class SOAP:
    """Nikhil Vyas's soap.py: m is kept outside the basis here, turned with it there."""

    def __init__(self, x, every):
        self.every, self.k, self.m, self.v = every, 0, np.zeros_like(x), np.zeros_like(x)
        self.factors, self.Q = [np.zeros((n, n)) for n in x.shape], None

    def average(self, g):
        self.factors = [0.95 * L + 0.05 * s for L, s in zip(self.factors, (g @ g.T, g.T @ g), strict=True)]

    def step(self, x, g, lr):
        if self.Q is None:
            self.average(g)
            self.Q = [np.linalg.eigh(L)[1][:, ::-1] for L in self.factors]
            return x
        self.k += 1
        QL, QR = self.Q
        self.m = 0.95 * self.m + 0.05 * g
        self.v = 0.95 * self.v + 0.05 * (QL.T @ g @ QR) ** 2
        rate = lr * np.sqrt(1 - 0.95**self.k) / (1 - 0.95**self.k)
        x = x - rate * QL @ ((QL.T @ self.m @ QR) / (np.sqrt(self.v) + 1e-8)) @ QR.T
        self.average(g)
        if self.k % self.every == 0:
            for axis, (L, Q) in enumerate(zip(self.factors, self.Q, strict=True)):
                order = np.argsort(-np.diag(Q.T @ L @ Q))
                self.v = np.take(self.v, order, axis)
                self.Q[axis] = np.linalg.qr(L @ Q[:, order])[0]
        return x


def matrix(x):
    return x.reshape(x.shape[0], -1)


def follow(recipe, lr, of_matrix, of_vector, backend="eager", rtol=1e-9, shapes=tuple(SHAPES)):
    """Beside step functions of matrices and vectors, made by `of_matrix(x)` and `of_vector(x)`."""
    problem = Problem(shapes=shapes)
    params, theta = problem.tensors(), [x.copy() for x in problem.start]
    kept = [of_matrix(matrix(x)) if x.ndim > 1 else of_vector(x) for x in theta]
    optimizer = sandbox.Optimizer(params, recipe, lr=lr, backend=backend)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [30], gamma=0.3)
    for step in range(STEPS):
        problem.set_gradients(step, params)
        optimizer.step()
        scheduler.step()
        for i, g in enumerate(problem.gradient(step, theta)):
            see = matrix if g.ndim > 1 else np.asarray
            theta[i] = kept[i].step(see(theta[i]), see(g), rate(lr, step)).reshape(g.shape)
        for p, x in zip(params, theta, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), x, rtol=rtol, atol=rtol / 100, err_msg=f"step {step}")


@pytest.mark.parametrize(("scale", "backend"), each_backend(["original", "rms", "none"]))
def test_muon(scale, backend):
    """Matrices by Newton-Schulz, vectors by Adam at their share of the rate, whatever the rate is."""
    recipe = variants.get("muon").replace(solve=sandbox.blocks.Orthogonalize(scale=scale))
    vector = lambda x: Adam(x, 3e-4 / 0.02, 0.9, 0.95, 1e-10)  # noqa: E731
    follow(recipe, 0.01, lambda x: Muon(x, scale), vector, backend, rtol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sm3(backend):
    """Vectors too: there it is Adagrad."""

    class Adagrad:
        def __init__(self, x):
            self.B = np.zeros_like(x)

        def step(self, x, g, lr):
            self.B = self.B + g * g
            return x - lr * g / np.sqrt(self.B)

    follow(variants.get("sm3"), 0.1, SM3, Adagrad, backend)


def beside(recipe, peer, lr, shapes, steps, dtype=torch.float64):
    """The largest difference to another optimizer's trajectory in units of the largest step, at each step."""
    ours, theirs = Problem(shapes=shapes), Problem(shapes=shapes)
    params, others = ours.tensors(dtype), theirs.tensors(dtype)
    optimizer, other = sandbox.Optimizer(params, recipe, lr=lr), peer(others)
    found = []
    for step in range(steps):
        before = [p.detach().clone() for p in params]
        ours.set_gradients(step, params)
        theirs.set_gradients(step, others)
        optimizer.step()
        other.step()
        moved = max(float((p.detach() - b).abs().max()) for p, b in zip(params, before, strict=True))
        found.append(max(float((p - q).detach().abs().max()) for p, q in zip(params, others, strict=True)) / max(moved, 1e-30))
    return found


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize(("scale", "adjust"), [("original", "original"), ("rms", "match_rms_adamw")])
def test_muon_is_torchs_to_its_precision(scale, adjust, bfloat16):
    """torch iterates in bfloat16 (8 bits): 0.08 of a step after the first, where a wrong rule is 1 away."""
    solve = sandbox.blocks.Orthogonalize(scale=scale, bfloat16=bfloat16)
    recipe = variants.get("muon").replace(solve=solve, **{"decay.weight_decay": 0.1})
    peer = lambda q: torch.optim.Muon(q, lr=0.02, weight_decay=0.1, adjust_lr_fn=adjust)  # noqa: E731
    assert max(beside(recipe, peer, 0.02, [(8, 5), (5, 8), (6, 6)], 3)) < 0.3


@pytest.mark.parametrize("backend", BACKENDS)
def test_iterations_in_bfloat16(backend):
    """The direction has the eight bits of bfloat16, the parameter all of its own."""
    start, g = torch.zeros(8, 5), torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    p = start.clone().requires_grad_()
    p.grad = g
    solve = sandbox.blocks.Orthogonalize(scale="none", bfloat16=True)
    sandbox.Optimizer([p], variants.get("muon").replace(solve=solve), lr=0.5, backend=backend).step()
    d = -2 * p.detach()
    assert torch.equal(d, d.bfloat16().float())
    torch.testing.assert_close(d, orthogonal(0.0975 * g, 5), rtol=0, atol=0.05)  # 2⁻⁸ in each of some ten products


def test_newton_schulz_is_published_code_in_double():
    """In the same precision to rounding (1e-13: five steps of matrices of norm one)."""
    package = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer (extra bench) is the oracle")
    from pytorch_optimizer.optimizer.utils.matrix import zero_power_via_newton_schulz_5

    assert package
    for shape in [(5, 8), (8, 5), (6, 6)]:
        X = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(
            orthogonal(X, 5), zero_power_via_newton_schulz_5(X.clone(), dtype=torch.float64), rtol=1e-12, atol=1e-13
        )


def test_sm3_is_published_code():
    """On matrices and vectors, where views are no matter."""
    package = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer (extra bench) is the oracle")
    peer = lambda q: package.SM3(q, lr=0.1, foreach=False)  # noqa: E731
    assert max(beside(variants.get("sm3"), peer, 0.1, [(4, 3), (7,), (3, 5)], STEPS)) < 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
def test_shampoo(backend):
    """Matrix roots are taken of factors of condition 1e6 at most: 1e-16 times that at the worst."""

    class Adagrad:
        def __init__(self, x):
            self.B = np.zeros_like(x)

        def step(self, x, g, lr):
            self.B = self.B + g * g
            return x - lr * g / (np.sqrt(self.B) + 1e-8)

    follow(variants.get("shampoo"), 0.1, Shampoo, Adagrad, backend, rtol=1e-6)


# The first decomposition leaves vectors of an eigenvalue 0 to the library where there are several: sides differ by one at most.
NEARLY_SQUARE = [(4, 3), (2, 3, 1), (5, 5), (5, 6)]


@pytest.mark.parametrize(("every", "backend"), each_backend([1, 4]))
def test_soap(every, backend):
    recipe = variants.get("soap").replace(basis=sandbox.blocks.SOAPBasis(every=every), **{"decay.weight_decay": 0.0})
    follow(recipe, 0.01, lambda x: SOAP(x, every), None, backend, rtol=1e-6, shapes=NEARLY_SQUARE)


@pytest.mark.parametrize(("window", "backend"), each_backend([3, 10]))
def test_ggt(window, backend):
    """TensorFlow's ggt.py, all tensors as one vector, more and fewer steps than its window holds."""
    problem = Problem(shapes=SHAPES)
    m, kept = np.zeros(sum(x.size for x in problem.start)), []
    params = problem.tensors()
    recipe = variants.get("ggt").replace(solve=sandbox.blocks.FullMatrix(window=window))
    optimizer = sandbox.Optimizer(params, recipe, lr=0.01, backend=backend)
    theta = np.concatenate([x.ravel() for x in problem.start])
    cuts = np.cumsum([x.size for x in problem.start])[:-1]
    for step in range(8):
        problem.set_gradients(step, params)
        optimizer.step()
        parts = [v.reshape(x.shape) for v, x in zip(np.split(theta, cuts), problem.start, strict=True)]
        m = 0.9 * m + 0.1 * np.concatenate([g.ravel() for g in problem.gradient(step, parts)])
        kept = [m, *kept][:window]
        M = np.stack([*kept, *[np.zeros_like(m)] * (window - len(kept))], 1) / np.sqrt(min(step + 1, window))
        sigma, U = np.linalg.eigh(M.T @ M + 1e-6 * np.eye(window))
        root = np.sqrt(sigma)
        d = M @ U @ np.diag((root + 1e-2) ** -3) @ U.T @ M.T @ m
        if root.min() > 1e-4:
            d = d + (m - M @ U @ np.diag(1 / sigma) @ U.T @ M.T @ m) / root.min()
        theta = theta - 0.01 * d
        mine = np.concatenate([p.detach().numpy().ravel() for p in params])
        np.testing.assert_allclose(mine, theta, rtol=1e-7, atol=1e-8, err_msg=f"step {step}")


def test_shampoo_and_soap_are_published_code():
    """pytorch_optimizer decomposes in float32: 2e-5 of a step a decomposition, a wrong rule 1."""
    package = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer (extra bench) is the oracle")
    shampoo = variants.get("shampoo").replace(**{"basis.eps": 1e-2})
    assert max(beside(shampoo, lambda q: package.Shampoo(q, lr=0.1, matrix_eps=1e-2), 0.1, [(4, 3), (3, 5)], 20)) < 1e-3
    soap = variants.get("soap").replace(basis=sandbox.blocks.SOAPBasis(every=3), **{"decay.weight_decay": 0.0})
    peer = lambda q: package.SOAP(q, lr=0.01, weight_decay=0.0, precondition_frequency=3)  # noqa: E731
    found = beside(soap, peer, 0.01, [(4, 3), (5, 6), (5, 5)], 30)
    assert found[0] == 0.0
    assert max(found) < 1e-3
