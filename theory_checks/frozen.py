"""The frozen case: with D at its floor σ = 1 and β = 0 Apollo is projected online gradient descent with rate η/√t.

For that method performance estimation (PEPit, extra `theory`) gives the exact worst case over all convex losses with M-bounded
gradients on a set of diameter D, and no bound may lie below it.
"""

from __future__ import annotations

import math


def worst_case(n: int, eta: float = 0.5, M: float = 1.0, D: float = 1.0) -> float:
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
    regret = 0
    for t, loss in enumerate(losses, start=1):
        g, value = loss.oracle(theta)
        regret = regret + value - loss(star)
        # θ_{t+1} = Π(θ_t - η/√t g)
        theta, _, _ = proximal_step(theta - eta / math.sqrt(t) * g, feasible, 1)
    problem.set_performance_metric(regret)
    return float(problem.solve(verbose=0))


def bounds(n: int, eta: float = 0.5, M: float = 1.0, D: float = 1.0) -> dict[str, float]:
    """Theorem 2 and repaired bound 1 with D_t = 1, β = 0, one dimension."""
    start, S = math.sqrt(n) * D**2 / (2 * eta), 2 * math.sqrt(n) - 1
    # √T D²‖D_T‖₁/(2η) + ηG² S_T, and half of the last term
    return {"Theorem 2 as stated": start + eta * M**2 * S, "repaired 1": start + eta * M**2 / 2 * S}
