"""F7: an encoder-decoder Transformer, clipped to global norm 1."""

from sandbox.studies.arms import wmt
from sandbox.studies.rates import TEXT_MILESTONES, RateSchedule
from sandbox.studies.study import Arm, Part, Search, Study

SMOKE = {"vocabulary": 500, "width": 32, "heads": 2, "feedforward": 64, "layers": 1, "tokens": 256, "longest": 16, "pairs": 400}
LARGE = {"vocabulary": 8000, "width": 256, "heads": 4, "feedforward": 1024, "layers": 3, "tokens": 4096}


def _arms(scale: float) -> tuple[Arm, ...]:
    """WMT's, with Adam at the common schedule, and at its own as a further arm."""
    arms = wmt(scale)
    own = arms.pop("adam")
    return (*arms.values(), own.but(rate=None), own.but(name="adam inverse-sqrt", rate=RateSchedule("inverse-sqrt")))


STUDY = Study(
    key="F7",
    name="translation",
    question="On attention, how far is SGD behind Adam, and on whose side is Apollo?",
    note="Small tiers: 361,472 parameters on verses; too small for BLEU, so the measure is -log p of a test piece.",
    tiers={
        "smoke": [
            Part(name="main", task="transformer-verses", options=SMOKE, arms=_arms(0.002), seeds=1, steps=12, evaluations=1)
        ],
        "cpu": [
            Part(
                name="main", task="transformer-verses", options={"steps": 240, "tokens": 256}, arms=_arms(0.0125), seeds=6,
                rate=TEXT_MILESTONES, evaluations=5, search=Search(steps=120),
            )
        ],
        "gpu": [
            Part(
                name="main", task="transformer-verses", options={**LARGE, "steps": 6000}, arms=_arms(0.05), seeds=3,
                rate=TEXT_MILESTONES, evaluations=20,
            )
        ],
        "paper": [
            Part(
                name="main", task="transformer-wmt14", arms=tuple(wmt().values()), seeds=5, rate=TEXT_MILESTONES, evaluations=50
            )
        ],
    },
)  # fmt: skip
