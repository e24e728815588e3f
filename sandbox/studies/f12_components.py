"""F12: Apollo without each of its parts; the paper has no such experiment."""

from sandbox.studies.arms import SIGMA, digits, floor_sgd, frozen
from sandbox.studies.extra import SignedFloor
from sandbox.studies.study import Arm, Part, Search, Study

ABLATIONS = (
    "no-stepsize-correction", "global-secant", "channel-secant", "coordinate-secant", "soft-absolute", "hessian-ema",
    "scale-invariant", "no-momentum",
)  # fmt: skip
EIGHT = (0.0316, 0.1, 0.316, 1.0, 3.16, 10.0, 31.6, 100.0)


def components(warmup: int) -> tuple[Arm, ...]:
    """Apollo, variants that differ from it in one part, two more momenta, the SGD that it is on the floor, and Adam."""
    apollo = Arm(name="apollo", method="apollo", lr=0.01, warmup=warmup)
    chosen = [apollo.but(name=name, method=name) for name in ABLATIONS]
    signed = apollo.but(name="max(B, σ)", numbers={"rectifier": SignedFloor(sigma=SIGMA)})
    betas = [apollo.but(name=f"β={b:g}", numbers={"moment.beta": b}) for b in (0.5, 0.99)]
    return (apollo, *chosen, signed, *betas, frozen(apollo), floor_sgd(apollo), digits(warmup)["adam"].but(warmup=warmup))


def floors(warmup: int) -> tuple[Arm, ...]:
    """Lower floors, with η/σ and ε σ as they are, and with η as it is."""
    apollo = Arm(name="apollo", method="apollo", lr=0.01, warmup=warmup)
    low = (1e-3, 1e-4, 1e-5)
    coupled = [
        apollo.but(name=f"σ={s:g}, η/σ", lr=s, numbers={"rectifier.sigma": s, "curvature.eps": 1e-4 * SIGMA / s}) for s in low
    ]
    return (apollo, *coupled, *(apollo.but(name=f"σ={s:g}, η", numbers={"rectifier.sigma": s}) for s in low))


def sums(warmup: int) -> tuple[Arm, ...]:
    """A moving average of squares, and their growing sum."""
    return tuple(Arm(name=name, method=name, lr=0.01, warmup=warmup) for name in ("rmsprop", "adagrad"))


STUDY = Study(
    key="F12",
    name="components",
    question="Which parts of Apollo matter?",
    note="Each arm chooses among eight rates by its validation loss, so claims compare test losses, of 359 images; only in the "
    "part on floors, where the rates are given, they compare training losses.",
    tiers={
        "smoke": [Part(name="digits-mlp", task="digits-mlp", arms=components(6), seeds=2, steps=40, evaluations=1)],
        "cpu": [
            Part(
                name=task, task=task, arms=components(30), seeds=seeds, steps=steps,
                search=Search(factors=EIGHT, steps=steps, seeds=3),
            )
            for task, seeds, steps in (("digits-mlp", 10, 200), ("digits-cnn", 6, 150))
        ] + [
            Part(name="floors", task="digits-mlp", arms=floors(30), seeds=6, steps=300),
            Part(
                name="sums", task="digits-mlp", arms=sums(30), seeds=6, steps=300,
                search=Search(factors=EIGHT, steps=300, seeds=3),
            ),
        ],
    },
)  # fmt: skip
