"""The exact worst case of the method with D at its floor, and what solvers can decide.

With D at its floor σ = 1 Apollo is projected online gradient descent with momentum and rate η/√t.  For that method performance
estimation (PEPit, extra `theory`) gives the exact worst case over all convex losses with M-bounded gradients on a set of
diameter D, and no bound may lie below it.

PEPit decides no more than that: a step must be affine in gradients and iterates with coefficients known beforehand, and the
secant rule divides quartic forms in single coordinates of d.  What scipy decides: θ* of linear losses (`linprog`, up to its
tolerances) and of convex ones (`comparators`), where convexity is a premise.  It does not decide a worst
case: what `differential_evolution` finds counts only once it is recorded and certified.
"""

from __future__ import annotations

import math

from theory_checks.claims import regret_bounds


def worst_case(n: int, eta: float = 0.5, M: float = 1.0, D: float = 1.0, beta: float = 0.0) -> float:
    """The largest regret after n steps, by a semidefinite program.  Raises ImportError where PEPit is not installed."""
    from PEPit import PEP
    from PEPit.functions import ConvexIndicatorFunction, ConvexLipschitzFunction
    from PEPit.primitive_steps import proximal_step

    problem = PEP()
    losses = [problem.declare_function(ConvexLipschitzFunction, M=M) for _ in range(n)]
    feasible = problem.declare_function(ConvexIndicatorFunction, D=D)
    star, theta = problem.set_initial_point(), problem.set_initial_point()
    feasible.oracle(star)
    theta, _, _ = proximal_step(theta, feasible, 1)
    regret, m = 0, 0 * theta
    for t, loss in enumerate(losses, start=1):
        g, value = loss.oracle(theta)
        regret = regret + value - loss(star)
        # m_t = β m_{t-1} + (1-β) g_t;  θ_{t+1} = Π(θ_t - η/√t m_t)
        m = beta * m + (1 - beta) * g
        theta, _, _ = proximal_step(theta - eta / math.sqrt(t) * m, feasible, 1)
    problem.set_performance_metric(regret)
    return float(problem.solve(verbose=0))


def bounds(n: int, eta: float = 0.5, M: float = 1.0, D: float = 1.0, beta: float = 0.0) -> dict[str, float]:
    """Theorem 2 and the repaired bounds 1 and 3 with D_t = 1, constant β, one dimension."""
    squares = sum(beta**2 * math.sqrt(t) / eta for t in range(1, n + 1))
    numbers = {"T": n, "trace": 1.0, "G": M, "diameter": D, "radius": D, "sigma": 1.0, "eta": eta}
    terms = regret_bounds.terms(**numbers, beta=beta, betas=beta * n, squares=squares)
    return {name: float(sum(terms[name].values())) for name in (regret_bounds.STATED, "repaired 1", "repaired 3")}
