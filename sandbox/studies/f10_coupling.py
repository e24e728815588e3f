"""F10: η and σ matter only through η/σ where ε goes with 1/σ, or where B = 0; in float64."""

import torch

from sandbox.studies.study import Arm, Part, Study

SIGMAS = (1.0, 0.01)
_APOLLO = Arm(name="apollo", method="apollo", lr=0.01)


def coupled(eps_follows: bool) -> tuple[Arm, ...]:
    """Apollo at η/σ = 1 for each σ; ε σ = 1e-6 where ε follows, else ε = 1e-4."""
    return tuple(
        _APOLLO.but(name=f"σ={s:g}", lr=s, numbers={"rectifier.sigma": s, "curvature.eps": 1e-6 / s if eps_follows else 1e-4})
        for s in SIGMAS
    )


def _parts(steps: int, seeds: int) -> list[Part]:
    options = {"dtype": torch.float64}
    return [
        Part(name=name, task="digits-mlp", options=options, arms=coupled(follows), seeds=seeds, steps=steps)
        for name, follows in (("ε with 1/σ", True), ("ε fixed", False))
    ] + [
        Part(
            name="B = 0", task="digits-mlp", options=options, seeds=seeds, steps=steps,
            arms=tuple(arm.but(method="frozen", numbers={"rectifier.sigma": arm.lr}) for arm in coupled(True)),
        )
    ]  # fmt: skip


STUDY = Study(
    key="F10",
    name="coupling",
    question="Do η and σ matter only through their ratio?",
    note="Trajectories are compared by their training losses. The theorem has no ε: with ε fixed, as in Algorithm 1, a gap is "
    "expected.",
    tiers={"smoke": _parts(60, 1), "cpu": _parts(400, 6)},
)
