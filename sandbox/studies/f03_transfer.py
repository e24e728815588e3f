"""F3: hyperparameters carried to another task, only the decay chosen anew; the paper's ImageNet."""

from sandbox.studies.arms import digits, imagenet, images
from sandbox.studies.rates import COSINE, IMAGENET_MILESTONES
from sandbox.studies.study import Arm, Part, Study

_DECAYS = (1 / 3, 1.0, 3.0)  # factors of γ
_RATES = (0.3, 1.0, 3.0, 10.0)  # factors of η, at equal η γ


def _grid(arms: tuple[Arm, ...], rates: tuple[float, ...], decays: tuple[float, ...]) -> tuple[Arm, ...]:
    return tuple(
        arm.but(name=f"{arm.name} η×{r:.3g} γ×{g:.3g}", lr=arm.lr * r, weight_decay=arm.weight_decay * g / r)
        for arm in arms
        for r in rates
        for g in decays
    )


_CARRIED = tuple(images(20)[name] for name in ("apollo", "frozen"))
_FEW = tuple(digits(3)[name] for name in ("apollo", "frozen", "sgd", "adam"))

STUDY = Study(
    key="F3",
    name="transfer",
    question="With η, β, ε kept from one data set and only γ chosen anew, what is lost against choosing both?",
    note="Stands for ImageNet, and says nothing about its scale. cpu: from CIFAR-10's η to the digits' MLP.",
    tiers={
        "smoke": [
            Part(
                name="main", task="digits-cnn", arms=_grid(_FEW, (0.3, 1.0), (1.0,)), seeds=1, steps=20,
                evaluations=1,
            )
        ],
        "cpu": [
            Part(
                name="main", task="digits-mlp", arms=_grid(_CARRIED, _RATES, _DECAYS), seeds=6, steps=150, evaluations=3,
                timed=True,
            )
        ],
        "paper": [
            Part(name=name, task="resnext50-imagenet", arms=tuple(imagenet().values()), seeds=5, rate=rate, evaluations=120)
            for name, rate in (("milestones", IMAGENET_MILESTONES), ("cosine", COSINE))
        ],
    },
)  # fmt: skip
