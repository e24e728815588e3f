"""F6: a two-layer LSTM language model with adaptive softmax, clipped to global norm 1."""

from sandbox.studies.arms import billion_words
from sandbox.studies.rates import TEXT_MILESTONES
from sandbox.studies.study import Part, Search, Study

SMALL = {"vocabulary": 500, "embedding": 32, "hidden": 32, "cutoffs": (150, 400), "sequences": 16, "window": 10}
SMOKE = {**SMALL, "tokens": 60_000, "evaluated": 2_000}
LARGE = {"vocabulary": 20_000, "embedding": 256, "hidden": 512, "cutoffs": (1500, 4000), "sequences": 128}
_EPSILONS = (1e-8, 1e-12, 1e-16)


def _epsilons() -> tuple:
    arms = billion_words()
    belief = tuple(
        arms["adabelief"].but(name=f"adabelief ε={e:g}", numbers={"curvature.eps": e, "rectifier.eps": e}) for e in _EPSILONS
    )
    return belief + tuple(arms["adam"].but(name=f"adam ε={e:g}", numbers={"rectifier.eps": e}) for e in _EPSILONS)


STUDY = Study(
    key="F6",
    name="language",
    question="Does Apollo start slower than Adam and end lower, is AdaBelief with ε = 1e-12 special, are there sudden losses?",
    note="Small tiers: 8,000 words, less than one pass; the test speeches are from 2007 on. Losses are log perplexities.",
    tiers={
        "smoke": [
            Part(
                name="main", task="lstm-speeches", options=SMOKE, arms=tuple(billion_words(3).values()), seeds=1, steps=25,
                evaluations=1,
            )
        ],
        "cpu": [
            Part(
                name="main", task="lstm-speeches", options={"evaluated": 40_000}, arms=tuple(billion_words(25).values()),
                seeds=6, steps=2000, rate=TEXT_MILESTONES, evaluations=8, search=Search(steps=500),
            ),
            Part(
                name="epsilon", task="lstm-speeches", options={"evaluated": 40_000}, arms=_epsilons(), seeds=6, steps=2000,
                rate=TEXT_MILESTONES, evaluations=4,
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
