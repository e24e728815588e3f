"""F6: a two-layer LSTM language model with adaptive softmax, clipped to global norm 1."""

from sandbox.studies.arms import billion_words
from sandbox.studies.rates import TEXT_MILESTONES
from sandbox.studies.study import Arm, Part, Search, Study

SMALL = {"vocabulary": 500, "embedding": 32, "hidden": 32, "cutoffs": (150, 400), "sequences": 16, "window": 10}
SMOKE = {**SMALL, "tokens": 60_000, "evaluated": 2_000}
LARGE = {"vocabulary": 20_000, "embedding": 256, "hidden": 512, "cutoffs": (1500, 4000), "sequences": 128}
MEDIUM = {
    "vocabulary": 1000, "embedding": 32, "hidden": 64, "cutoffs": (200, 500), "sequences": 16, "window": 10,
    "evaluated": 10_000,
}  # fmt: skip


def _arms() -> tuple[Arm, ...]:
    """Those of the paper, and AdaBelief with other ε than its 1e-12."""
    arms = {name: arm for name, arm in billion_words(25).items() if name != "sgd-w"}
    others = [
        arms["adabelief"].but(name=f"adabelief ε={e:g}", numbers={"curvature.eps": e, "rectifier.eps": e})
        for e in (1e-8, 1e-16)
    ]
    return (*arms.values(), *others)


STUDY = Study(
    key="F6",
    name="language",
    question="Does Apollo start slower than Adam and end lower, is AdaBelief with ε = 1e-12 special, are there sudden losses?",
    note="cpu: 1,000 words, 80,000 of text; the test speeches are from 2007 on. Losses are log perplexities.",
    tiers={
        "smoke": [
            Part(
                name="main", task="lstm-speeches", options=SMOKE, arms=tuple(billion_words(3).values()), seeds=1, steps=25,
                evaluations=1,
            )
        ],
        "cpu": [
            Part(
                name="main", task="lstm-speeches", options=MEDIUM,
                arms=_arms(), seeds=6, steps=500, rate=TEXT_MILESTONES, evaluations=5, search=Search(steps=125),
            ),
        ],
        "gpu": [
            Part(
                name="main", task="lstm-speeches", options=LARGE, arms=tuple(billion_words(35).values()), seeds=5, steps=3500,
                rate=TEXT_MILESTONES, evaluations=20,
            )
        ],
        "paper": [
            Part(
                name="main", task="lstm-1bw", arms=tuple(billion_words().values()), seeds=5, rate=TEXT_MILESTONES,
                evaluations=20,
            )
        ],
    },
)  # fmt: skip
