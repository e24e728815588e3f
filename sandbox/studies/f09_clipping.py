"""F9: gradients clipped by the norm of all, or tensor by tensor."""

from sandbox.studies.arms import billion_words, frozen, wmt
from sandbox.studies.f06_language import MEDIUM, SMOKE
from sandbox.studies.rates import TEXT_MILESTONES
from sandbox.studies.study import Arm, Part, Search, Study


def clipped(apollo: Arm, *norms: float) -> tuple[Arm, ...]:
    """Apollo at global norm 1, and at these norms of each tensor."""
    chosen = [apollo.but(name="global 1", clip=("global", 1.0))]
    return (*chosen, *(apollo.but(name=f"parameter {c:g}", clip=("parameter", c)) for c in norms))


_APOLLO = billion_words(25)["apollo"]

STUDY = Study(
    key="F9",
    name="clipping",
    question="Is clipping tensor by tensor better for Apollo than clipping all gradients together?",
    note="The paper's difference in log perplexity, 0.6 %, is at the edge of what ten seeds show.",
    tiers={
        "smoke": [
            Part(
                name="language", task="lstm-speeches", options=SMOKE, arms=clipped(billion_words(3)["apollo"], 0.5), seeds=1,
                steps=12, evaluations=1,
            )
        ],
        "cpu": [
            Part(
                name="language", task="lstm-speeches", options=MEDIUM, seeds=10, steps=400,
                arms=(*clipped(_APOLLO, 0.5), frozen(_APOLLO)),
                rate=TEXT_MILESTONES, evaluations=2, search=Search(steps=100),
            )
        ],
        "paper": [
            Part(name=name, task=task, arms=clipped(arm, norm), seeds=5, rate=TEXT_MILESTONES, evaluations=20)
            for name, task, arm, norm in (
                ("language", "lstm-1bw", billion_words()["apollo"], 0.5),
                ("translation", "transformer-wmt14", wmt()["apollo"], 0.1),
            )
        ],
    },
)  # fmt: skip
