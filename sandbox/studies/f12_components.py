"""F12: Apollo without each of its parts; the paper has no such experiment."""

from sandbox.studies.arms import floor_sgd
from sandbox.studies.study import Arm, Part, Search, Study

ABLATIONS = {
    "no-stepsize-correction": "no-stepsize-correction",
    "global-secant": "global-secant",
    "channel-secant": "channel-secant",
    "coordinate-secant": "coordinate-secant",
    "soft-absolute": "soft-absolute",
    "hessian-ema": "hessian-ema",
    "scale-invariant": "scale-invariant",
    "no-momentum": "no-momentum",
}


def components(warmup: int) -> tuple[Arm, ...]:
    """Apollo, every variant that differs from it in one part, three more momenta, and the SGD that it is on the floor."""
    apollo = Arm(name="apollo", method="apollo", lr=0.01, warmup=warmup)
    found = [apollo.but(name=name, method=method) for name, method in ABLATIONS.items()]
    betas = [apollo.but(name=f"β={b:g}", numbers={"moment.beta": b}) for b in (0.5, 0.99)]
    return (apollo, *found, *betas, floor_sgd(apollo))


STUDY = Study(
    key="F12",
    name="components",
    question="Which parts of Apollo matter?",
    claims=(9, 11),
    note="Digits has 359 test images, so the measure is training loss. Each arm chooses among seven rates by validation loss.",
    tiers={
        "smoke": [Part(name="digits-mlp", task="digits-mlp", arms=components(6), seeds=2, steps=40, evaluations=1)],
        "cpu": [
            Part(
                name=task, task=task, arms=components(40), seeds=30, steps=400,
                search=Search(factors=(0.0316, 0.1, 0.316, 1.0, 3.16, 10.0, 31.6), steps=400, seeds=2),
            )
            for task in ("digits-mlp", "digits-cnn")
        ],
    },
)  # fmt: skip
