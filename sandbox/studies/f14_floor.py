"""F14: Apollo off its floor; the paper has no such experiment."""

from typing import Any

from sandbox.studies.arms import SIGMA, floor_sgd, frozen
from sandbox.studies.extra import SignedFloor
from sandbox.studies.rates import CIFAR_MILESTONES
from sandbox.studies.study import Arm, Part, Search, Study

METHODS = ("frozen", "apollo", "hessian-ema", "scale-invariant")
SCOPES = ("global-secant", "channel-secant", "coordinate-secant")
BETAS = (0.0, 0.5, 0.9)
BATCHES = (8, 32, 128)
EIGHT = (0.0316, 0.1, 0.316, 1.0, 3.16, 10.0, 31.6, 100.0)
SIX = EIGHT[:6]  # LeNet's
LENET = {"images": 2000, "evaluated": 1000}


def arms(beta: float, warmup: int, scopes: bool) -> tuple[Arm, ...]:
    """Returns the control, in which B stays 0, and three forms of Apollo, all with one β.

    The scale-invariant floor is about a tenth of a gradient's size here, so its rates are ten times the others'.
    scopes: add the other secant scopes, and the rectifier without the absolute value.
    """
    apollo = Arm(name="apollo", method="apollo", lr=0.01, warmup=warmup, numbers={"moment.beta": beta})
    found = [apollo.but(name=name, method=name) for name in (*METHODS, *(SCOPES if scopes else ()))]
    found[METHODS.index("scale-invariant")] = found[METHODS.index("scale-invariant")].but(lr=0.1)
    signed = apollo.but(name="max(B, σ)", numbers={**apollo.numbers, "rectifier": SignedFloor(sigma=SIGMA)})
    return (*found, signed) if scopes else tuple(found)


def _parts(task: str, steps: int, seeds: int, betas: tuple[float, ...], batches: tuple[int, ...], **options: Any) -> list[Part]:
    lenet = task == "lenet-fashion"
    return [
        Part(
            name=f"{task} β={beta:g} batch {size}", task=task, options={"batch_size": size, **options},
            arms=arms(beta, steps // 10, not lenet), seeds=seeds, steps=steps, evaluations=5,
            search=Search(factors=SIX if lenet else EIGHT, steps=steps, seeds=seeds) if seeds > 1 else None,
            timed=lenet,  # one by one, which is faster for LeNet
        )
        for beta in betas
        for size in batches
    ]  # fmt: skip


def _at_equal_rates() -> list[Part]:
    """Returns Apollo beside its controls at the same rates, without a search."""
    lenet = Arm(name="apollo", method="apollo", lr=1e-3, warmup=25)
    digits = []
    for beta in (0.9, 0.0):
        for eta in (0.001, 0.00316, 0.01, 0.0316):
            apollo = Arm(name="apollo", method="apollo", lr=eta, warmup=30, numbers={"moment.beta": beta})
            held = (apollo, frozen(apollo).but(numbers=apollo.numbers), *((floor_sgd(apollo),) if beta else ()))
            digits += [arm.but(name=f"{arm.name} β={beta:g} η={eta:g}") for arm in held]
    return [
        Part(name="digits-mlp at equal rates", task="digits-mlp", arms=tuple(digits), seeds=10, steps=200, evaluations=5),
        Part(
            name="lenet-fashion at equal rates", task="lenet-fashion", options={"evaluated": 1000}, seeds=8, steps=600,
            arms=(lenet, frozen(lenet), floor_sgd(lenet)), rate=CIFAR_MILESTONES, evaluations=5, timed=True,
        ),
    ]  # fmt: skip


STUDY = Study(
    key="F14",
    name="floor",
    question="Where Apollo leaves its floor, does its curvature buy a lower loss, a larger stable rate, or neither?",
    note="The first arm is the control, Apollo with B = 0, at Apollo's own rates. Every arm is run at six or eight rates "
    "with the seeds of the search, and at the one with the lowest validation loss with fresh ones.",
    tiers={
        "smoke": _parts("digits-mlp", 10, 1, (0.0,), (8,)),
        "cpu": [
            *_parts("digits-mlp", 200, 6, BETAS, BATCHES),
            *_parts("lenet-fashion", 100, 6, BETAS, BATCHES, **LENET),
            *_at_equal_rates(),
        ],
    },
)
