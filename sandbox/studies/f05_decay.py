"""F5: five strengths of weight decay; decay in the gradient against decay beside it."""

from sandbox.studies.arms import SIGMA, digits, images
from sandbox.studies.rates import CIFAR_MILESTONES, COSINE
from sandbox.studies.study import Arm, Part, Search, Study

FACTORS = (0.2, 0.6, 1.0, 1.4, 1.8)
SMALL_FACTORS = (0.2, 1.0, 1.8)
METHODS = ("apollo", "frozen", "sgd", "adam", "radam", "adabelief")
FORMS = ("apollo", "frozen", "sgd", "adam", "adabelief")


def scaled(arms: dict[str, Arm], factors: tuple[float, ...] = FACTORS) -> tuple[Arm, ...]:
    """Each method at each factor of its γ, all at the rate of γ×1, where that is among them."""
    return tuple(
        arms[m].but(
            name=f"{m} γ×{a:g}", weight_decay=arms[m].weight_decay * a,
            rate_of=f"{m} γ×1" if a != 1 and 1.0 in factors else "",
        )
        for m in METHODS
        if m in arms
        for a in factors
    )  # fmt: skip


def forms(arms: dict[str, Arm]) -> tuple[Arm, ...]:
    """Apollo, SGD, Adam and AdaBelief with γ in the gradient, all at SGD's γ, and beside it.

    Beside it Apollo has γ/σ, which is equal on its floor; the others have their own γ.
    """
    l2 = {m: arms[m].but(name=f"{m} l2", decay="l2", weight_decay=arms["sgd"].weight_decay) for m in FORMS if m in arms}
    beside = {m: arms[m].weight_decay for m in l2} | {m: l2[m].weight_decay / SIGMA for m in ("apollo", "frozen")}
    return tuple(
        form
        for m, arm in l2.items()
        for form in (arm, arm.but(name=f"{m} decoupled", decay="decoupled", weight_decay=beside[m]))
    )


_DIGITS = {name: arm.but(weight_decay=1e-4) for name, arm in digits(4).items()}

STUDY = Study(
    key="F5",
    name="decay",
    question="Do the curves of accuracy over γ differ in height or in place only, and does the form of decay matter?",
    note="Rates are searched, for the strengths with each method's own γ and for the forms in each. cpu: the digits' MLP, γ as "
    "on CIFAR-10.",
    tiers={
        "smoke": [
            Part(name="strength", task="digits-mlp", arms=scaled(_DIGITS, (0.2, 1.8)), seeds=1, steps=30, evaluations=1),
            Part(name="form", task="digits-mlp", arms=forms(_DIGITS), seeds=1, steps=30, evaluations=1),
        ],
        "cpu": [
            Part(
                name=name, task="digits-mlp", arms=arms, seeds=6, steps=150, rate=CIFAR_MILESTONES, evaluations=3,
                search=Search(steps=150), timed=True,
            )
            for name, arms in (("strength", scaled(images(20), SMALL_FACTORS)), ("form", forms(images(20))))
        ],
        "paper": [
            Part(
                name=name, task="resnet110-cifar10", options={"epochs": epochs}, arms=scaled(images()), seeds=5, rate=rate,
                evaluations=epochs,
            )
            for name, rate, epochs in (("milestones", CIFAR_MILESTONES, 164), ("cosine", COSINE, 200))
        ],
    },
)  # fmt: skip
