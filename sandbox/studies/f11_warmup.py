"""F11: lengths of warm-up, for every method."""

from sandbox.studies.arms import digits, images
from sandbox.studies.rates import CIFAR_MILESTONES
from sandbox.studies.study import Arm, Part, Study

LENGTHS = (0, 10, 100, 500)
METHODS = ("apollo", "frozen", "sgd", "adam", "radam", "adabelief", "adahessian")


def warmed(arms: dict[str, Arm], lengths: tuple[int, ...], factor: float = 1.0) -> tuple[Arm, ...]:
    """Each method at each length, at `factor` times its rate."""
    return tuple(
        arms[m].but(name=f"{m} w={w}", warmup=w, lr=arms[m].lr * factor) for m in METHODS if m in arms for w in lengths
    )


_LENET = {name: arm.but(lr=arm.lr / 10) for name, arm in images().items() if name != "adahessian"}

STUDY = Study(
    key="F11",
    name="warmup",
    question="How much does each method gain from warm-up, and is it more for Apollo?",
    note="On the floor Apollo is momentum SGD, and both should gain alike. AdaHessian takes part in the paper tier only.",
    tiers={
        "smoke": [Part(name="main", task="digits-mlp", arms=warmed(digits(), (0, 10)), seeds=1, steps=40, evaluations=1)],
        "cpu": [
            Part(
                name=name, task="lenet-fashion", arms=warmed(_LENET, LENGTHS, factor), seeds=6, rate=CIFAR_MILESTONES,
                evaluations=8,
            )
            for name, factor in (("main", 1.0), ("rate ×3", 3.0))
        ],
        "paper": [
            Part(
                name="main", task="resnet110-cifar10", arms=warmed(images(), (0, 500)), seeds=5, rate=CIFAR_MILESTONES,
                evaluations=164,
            )
        ],
    },
)  # fmt: skip
