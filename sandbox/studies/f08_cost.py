"""F8: time and state of a whole update, as multiples of SGD's; time and state against the number of parameters."""

from typing import Any

from sandbox.studies.arms import SIGMA, billion_words, images, wmt
from sandbox.studies.extra import SignedFloor
from sandbox.studies.study import Arm, Part, Study

SIZES = (300_000, 1_000_000, 3_000_000, 10_000_000)


def _part(name: str, task: str, arms: dict[str, Arm], seeds: int = 6, steps: int = 6, **more: Any) -> Part:
    chosen = [arms[arm] for arm in ("sgd", "adam", "apollo", "adahessian") if arm in arms]
    signed = arms["apollo"].but(name="apollo max(B, σ)", numbers={"rectifier": SignedFloor(sigma=SIGMA)})
    return Part(name=name, task=task, arms=(*chosen, signed), seeds=seeds, steps=steps, evaluations=1, timed=True, **more)


def _sizes(*sizes: int, seeds: int, steps: int) -> list[Part]:
    arms = tuple(Arm(name=name, method=name, lr=0.01) for name in ("sgd", "adam", "apollo"))
    return [
        Part(name=f"n={size}", task="sandbox.studies.extra:Parabola", options={"size": size}, arms=arms, seeds=seeds,
             steps=steps, evaluations=1, timed=True)
        for size in sizes
    ]  # fmt: skip


def _update(size: int, seeds: int) -> Part:
    """Returns Apollo's update alone, with and without the absolute value, in many rounds: per cents show only there."""
    apollo = Arm(name="apollo", method="apollo", lr=0.01)
    signed = apollo.but(name="apollo max(B, σ)", numbers={"rectifier": SignedFloor(sigma=SIGMA)})
    return Part(
        name="update", task="sandbox.studies.extra:Parabola", options={"size": size}, arms=(apollo, signed), seeds=seeds,
        steps=20, evaluations=1, timed=True,
    )  # fmt: skip


STUDY = Study(
    key="F8",
    name="cost",
    question="What does a whole update cost in time and state, as a multiple of SGD's?",
    note="A seed is a round in which every arm makes a few updates; a run's time is their median, arms are paired by round. "
    "On one thread of a CPU, where forward and backward passes dominate. In the parts called n and update there is no "
    "network.",
    tiers={
        "smoke": [_part("lenet", "lenet-fashion", images(2), seeds=1, options={"images": 640, "evaluated": 200})],
        "cpu": [
            _part("lenet", "lenet-fashion", images(2), options={"images": 640, "evaluated": 200}),
            _part("resnet", "resnet8-fashion", images(2), options={"images": 1280, "evaluated": 200}),
            _part("lstm", "lstm-speeches", billion_words(), options={"tokens": 60_000, "evaluated": 2_000}),
            _part("transformer", "transformer-verses", wmt(), options={"pairs": 1000}),
            *_sizes(*SIZES, seeds=6, steps=6),
            _update(300_000, 100),
        ],
        "paper": [
            _part("resnet", "resnet110-cifar10", images(), seeds=5, steps=200),
            _part("lstm", "lstm-1bw", billion_words(), seeds=5, steps=200),
            _part("transformer", "transformer-wmt14", wmt(), seeds=5, steps=200),
        ],
    },
)  # fmt: skip
