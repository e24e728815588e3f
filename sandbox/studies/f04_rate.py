"""F4: rates from a fifth to ten times the best one, with and without the decay that makes up for it."""

from sandbox.studies.arms import digits, images
from sandbox.studies.rates import CIFAR_MILESTONES
from sandbox.studies.study import Arm, Part, Search, Study

FACTORS = (0.2, 1.0, 2.0, 10.0)
METHODS = ("apollo", "frozen", "sgd", "adam", "radam")
FIXED = ("apollo", "sgd", "adam")


def scaled(
    arms: dict[str, Arm], methods: tuple[str, ...], compensated: bool, factors: tuple[float, ...] = FACTORS
) -> tuple[Arm, ...]:
    """Each method at each factor α of its rate, which is that of the arm ×1: rate α η, decay γ/α (η γ stays) or γ."""
    return tuple(
        arms[m].but(
            name=f"{m} ×{a:g}{'' if compensated else ', γ as it is'}", lr=arms[m].lr * a, rate_of="" if a == 1 else f"{m} ×1",
            weight_decay=arms[m].weight_decay / (a if compensated else 1),
        )
        for m in methods
        for a in factors
        if compensated or a != 1
    )  # fmt: skip


def both(arms: dict[str, Arm], factors: tuple[float, ...] = FACTORS) -> tuple[Arm, ...]:
    """With the decay that makes up for the rate, and with the decay as it is."""
    return scaled(arms, METHODS, True, factors) + scaled(arms, FIXED, False, factors)


STUDY = Study(
    key="F4",
    name="rate",
    question="Over a fifty-fold range of η, how far does accuracy move, and does warm-up cure SGD at ten times its rate?",
    note="The range lies about each method's best rate, which is searched. frozen has Apollo's warm-up: where Apollo and "
    "frozen move alike and SGD does not, it is the warm-up. cpu: the digits' MLP, γ as on CIFAR-10.",
    tiers={
        "smoke": [Part(name="main", task="digits-mlp", arms=both(digits(6), (1.0, 10.0)), seeds=1, steps=30, evaluations=1)],
        "cpu": [
            Part(
                name="main", task="digits-mlp", arms=both(images(20)), seeds=6, steps=150, rate=CIFAR_MILESTONES,
                evaluations=3, search=Search(steps=150), timed=True,
            )
        ],
        "paper": [
            Part(
                name="main", task="resnet110-cifar10", arms=scaled(images(), METHODS, True), seeds=5, rate=CIFAR_MILESTONES,
                evaluations=164,
            )
        ],
    },
)  # fmt: skip
