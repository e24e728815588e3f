"""F2: image classification by residual networks, two schedules."""

from sandbox.studies.arms import images
from sandbox.studies.rates import CIFAR_MILESTONES, COSINE
from sandbox.studies.study import Part, Study

PAPER_UPDATES = 64_124
_STANDARD = ("apollo", "sgd", "adam", "radam", "adabelief", "sgd-w", "adam*")


def _arms(steps: int, warmup: int, names: tuple[str, ...] = _STANDARD) -> tuple:
    found = images(warmup, decay=PAPER_UPDATES / steps)
    return tuple(found[name] for name in names)


_RATES = (("milestones", CIFAR_MILESTONES), ("cosine", COSINE))

STUDY = Study(
    key="F2",
    name="images",
    question="In which order do the optimizers stand in training loss and accuracy, and how much does weak decay cost Adam?",
    note="Small tiers: ResNet-8 at 14×14 with T η γ as in the paper; differences below 0.6 points cannot be decided.",
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
                name=name, task="resnet8-fashion", options={"epochs": 6}, arms=_arms(468, 10), seeds=3, rate=rate,
                evaluations=4,
            )
            for name, rate in _RATES[:1]
        ],
        "gpu": [
            Part(name=name, task="resnet20-fashion", arms=_arms(14_070, 140), seeds=5, rate=rate, evaluations=30)
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
