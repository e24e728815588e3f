"""F14: Apollo off its floor; the paper has no such experiment."""

from typing import Any

from sandbox.studies.arms import SIGMA
from sandbox.studies.extra import SignedFloor
from sandbox.studies.study import Arm, Part, Search, Study

METHODS = ("frozen", "apollo", "hessian-ema", "scale-invariant")
SCOPES = ("global-secant", "channel-secant", "coordinate-secant")
BETAS = (0.0, 0.5, 0.9)
BATCHES = (8, 32, 128)
EIGHT = (0.0316, 0.1, 0.316, 1.0, 3.16, 10.0, 31.6, 100.0)
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
            search=Search(factors=EIGHT, steps=steps, seeds=seeds) if seeds > 1 else None,
            timed=lenet,  # one by one, which is faster for LeNet
        )
        for beta in betas
        for size in batches
    ]  # fmt: skip


STUDY = Study(
    key="F14",
    name="floor",
    question="Where Apollo leaves its floor, does its curvature buy a lower loss, a larger stable rate, or neither?",
    note="The first arm is the control, Apollo with B = 0, at Apollo's own rates. Every arm is run at eight rates with the "
    "seeds of the search, and at the one with the lowest validation loss with fresh ones.",
    tiers={
        "smoke": _parts("digits-mlp", 10, 1, (0.0,), (8,)),
        "cpu": [
            *_parts("digits-mlp", 200, 6, BETAS, BATCHES),
            *_parts("lenet-fashion", 100, 6, BETAS, BATCHES, **LENET),
        ],
    },
)
