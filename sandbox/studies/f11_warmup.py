"""F11: lengths of warm-up, for every method."""

from sandbox.studies.arms import digits, images
from sandbox.studies.rates import CIFAR_MILESTONES
from sandbox.studies.study import Arm, Part, Search, Study

LENGTHS = (0, 50)  # of 150 updates
METHODS = ("apollo", "frozen", "sgd", "adam", "radam", "adabelief", "adahessian")


def warmed(arms: dict[str, Arm], lengths: tuple[int, ...]) -> tuple[Arm, ...]:
    """Each method at each length."""
    return tuple(arms[m].but(name=f"{m} w={w}", warmup=w) for m in METHODS if m in arms for w in lengths)


_ARMS = {name: arm for name, arm in images().items() if name != "adahessian"}

STUDY = Study(
    key="F11",
    name="warmup",
    question="How much does each method gain from warm-up, and is it more for Apollo?",
    note="Each method has its best rate at each length: what is gained is not the cure of a rate that is too large. "
    "cpu: the digits' MLP. AdaHessian takes part in the paper tier only.",
    tiers={
        "smoke": [Part(name="main", task="digits-mlp", arms=warmed(digits(), (0, 10)), seeds=1, steps=40, evaluations=1)],
        "cpu": [
            Part(
                name="main", task="digits-mlp", arms=warmed(_ARMS, LENGTHS), seeds=6, steps=150, rate=CIFAR_MILESTONES,
                evaluations=3, search=Search(steps=150), timed=True,
            )
        ],
        "paper": [
            Part(
                name="main", task="resnet110-cifar10", arms=warmed(images(), (0, 500)), seeds=5, rate=CIFAR_MILESTONES,
                evaluations=164,
            )
        ],
    },
)  # fmt: skip
