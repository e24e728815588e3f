"""F8: time and state of a whole update, as multiples of SGD's."""

from typing import Any

from sandbox.studies.arms import billion_words, images, wmt
from sandbox.studies.study import Arm, Part, Study


def _part(name: str, task: str, arms: dict[str, Arm], seeds: int = 3, steps: int = 30, **more: Any) -> Part:
    four = tuple(arms[arm] for arm in ("sgd", "adam", "apollo", "adahessian") if arm in arms)
    return Part(name=name, task=task, arms=four, seeds=seeds, steps=steps, evaluations=1, **more)


STUDY = Study(
    key="F8",
    name="cost",
    question="What does a whole update cost in time and state, as a multiple of SGD's?",
    claims=(2, 18, 19, 41),
    note="The median of a run's updates, seeds one after the other, not interleaved; on one thread of a CPU, where forward and "
    "backward passes dominate.",
    tiers={
        "smoke": [_part("lenet", "lenet-fashion", images(2), seeds=1, steps=10, options={"images": 640, "evaluated": 200})],
        "cpu": [
            _part("resnet", "resnet8-fashion", images(2), options={"images": 1280}),
            _part("lstm", "lstm-speeches", billion_words(), options={"tokens": 60_000, "evaluated": 4_000}),
            _part("transformer", "transformer-verses", wmt(), options={"pairs": 2000}),
        ],
        "paper": [
            _part("resnet", "resnet110-cifar10", images(), steps=200),
            _part("lstm", "lstm-1bw", billion_words(), steps=200),
            _part("transformer", "transformer-wmt14", wmt(), steps=200),
        ],
    },
)  # fmt: skip
