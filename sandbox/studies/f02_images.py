"""F2: image classification by residual networks, two schedules."""

from sandbox.studies.arms import images
from sandbox.studies.rates import CIFAR_MILESTONES, COSINE
from sandbox.studies.study import Arm, Part, Search, Study

PAPER_UPDATES = 64_124
_STANDARD = ("apollo", "sgd", "adam", "radam", "adabelief", "frozen", "sgd-w", "adam*")


def _arms(warmup: int, decay: float = 1.0) -> tuple[Arm, ...]:
    """decay: a factor before every γ."""
    arms = images(warmup, decay)
    return tuple(arms[name] for name in _STANDARD)


_RATES = (("milestones", CIFAR_MILESTONES), ("cosine", COSINE))

STUDY = Study(
    key="F2",
    name="images",
    question="In which order do the optimizers stand in training loss and accuracy, and how much does weak decay cost Adam?",
    note="cpu: ResNet-8 at 14×14, three passes, rates searched, γ as on CIFAR-10. Decay hardly acts in so few updates: what is "
    "said of strong and weak decay cannot be seen. gpu: T η γ as in the paper.",
    tiers={
        "smoke": [
            Part(
                name=name, task="resnet8-fashion", options={"images": 512, "batch_size": 32, "evaluated": 200}, seeds=1,
                steps=6, rate=rate, arms=tuple(images(2).values()), evaluations=1,
            )
            for name, rate in _RATES
        ],
        "cpu": [
            Part(
                name=name, task="resnet8-fashion", options={"epochs": 3}, arms=_arms(10), seeds=6, rate=rate,
                evaluations=6, search=Search(steps=117),
            )
            for name, rate in _RATES[:1]
        ],
        "gpu": [
            Part(
                name=name, task="resnet20-fashion", arms=_arms(140, PAPER_UPDATES / 14_070), seeds=5, rate=rate,
                evaluations=30,
            )
            for name, rate in _RATES
        ],
        "paper": [
            Part(
                name=name, task="resnet110-cifar10", options={"epochs": epochs}, arms=tuple(images().values()), seeds=5,
                rate=rate, evaluations=epochs,
            )
            for (name, rate), epochs in zip(_RATES, (164, 200), strict=True)
        ],
    },
)  # fmt: skip
