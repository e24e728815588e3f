"""F4: rates from a fifth to ten times the chosen one, with and without the decay that makes up for it."""

from typing import Any

from sandbox.studies.arms import digits, images
from sandbox.studies.rates import CIFAR_MILESTONES
from sandbox.studies.study import Arm, Part, Study

FACTORS = (0.2, 1.0, 2.0, 10.0)
METHODS = ("apollo", "sgd", "adam", "radam", "frozen", "sgd-w")
FIXED = ("apollo", "sgd", "adam")


def scaled(
    arms: dict[str, Arm], methods: tuple[str, ...], compensated: bool, factors: tuple[float, ...] = FACTORS
) -> tuple[Arm, ...]:
    """Each method at each factor α: rate α η, decay γ/α (η γ stays) or γ."""
    return tuple(
        arms[m].but(name=f"{m} ×{a:g}", lr=arms[m].lr * a, weight_decay=arms[m].weight_decay / (a if compensated else 1))
        for m in methods
        for a in factors
    )


def _parts(task: str, arms: dict[str, Arm], factors: tuple[float, ...], **more: Any) -> list[Part]:
    fixed = tuple(arm for arm in scaled(arms, FIXED, False, factors) if not arm.name.endswith("×1"))
    return [
        Part(name="compensated", task=task, arms=scaled(arms, METHODS, True, factors), **more),
        Part(name="fixed", task=task, arms=fixed, **more),
    ]


_LENET = {name: arm.but(lr=arm.lr / 10) for name, arm in images(25).items() if name in METHODS}  # no normalisation: lower rates

STUDY = Study(
    key="F4",
    name="rate",
    question="Over a fifty-fold range of η, how far does accuracy move, and does warm-up cure SGD at ten times its rate?",
    note="sgd-w has Apollo's warm-up: where Apollo and sgd-w move alike, it is the warm-up that makes the range wide.",
    tiers={
        "smoke": _parts("digits-mlp", digits(6), (1.0, 10.0), seeds=1, steps=30, evaluations=1),
        "cpu": _parts("lenet-fashion", _LENET, FACTORS, seeds=5, rate=CIFAR_MILESTONES, evaluations=4),
        "paper": [
            Part(
                name="compensated", task="resnet110-cifar10", arms=scaled(images(), METHODS, True), seeds=5,
                rate=CIFAR_MILESTONES, evaluations=164,
            )
        ],
    },
)  # fmt: skip
