"""The arms of the paper's tables, number for number, and further ones for comparison."""

from __future__ import annotations

from sandbox.blocks import TwoLoop, UnitLength
from sandbox.studies.rates import RateSchedule
from sandbox.studies.study import Arm

BETA, SIGMA = 0.9, 0.01  # Apollo's

# -- images -------------------------------------------------------------------------------------------------------------

_SGD = Arm(name="sgd", method="sgd", lr=0.1, weight_decay=5e-4)
_ADAM = Arm(name="adam", method="adam", lr=1e-3, weight_decay=0.25, decay="decoupled")
_RADAM = _ADAM.but(name="radam", method="radam")
_ADABELIEF = _ADAM.but(name="adabelief", method="adabelief")
_APOLLO = Arm(name="apollo", method="apollo", lr=0.01, weight_decay=2.5e-4)
_APOLLOW = _APOLLO.but(name="apollow", weight_decay=2.5e-2, decay="decoupled")
_ADAHESSIAN = Arm(
    name="adahessian", method="adahessian", lr=0.15, weight_decay=1e-3, decay="decoupled", numbers={"rectifier.eps": 1e-2}
)


def images(warmup: int = 500, decay: float = 1.0) -> dict[str, Arm]:
    """Returns CIFAR-10's arms by name, Apollo first; decay: a factor before every γ, to keep T η γ in shorter runs.

    frozen is Apollo with B = 0, the control.  sgd-w is momentum SGD with Apollo's warm-up at Apollo's rate on the floor,
    (η/σ)(1-β), and Apollo's γ; it lacks the bias correction.
    """
    warm = (_APOLLO.but(warmup=warmup), _APOLLOW.but(warmup=warmup), _ADAHESSIAN.but(warmup=warmup))
    weak = tuple(arm.but(name=f"{arm.name}*", weight_decay=_SGD.weight_decay) for arm in (_ADAM, _RADAM))
    rows = (*warm[:1], _SGD, _ADAM, _RADAM, _ADABELIEF, *warm[1:], *weak, frozen(warm[0]), floor_sgd(warm[0]))
    return {arm.name: arm.but(weight_decay=arm.weight_decay * decay) for arm in rows}


def imagenet() -> dict[str, Arm]:
    """Returns ImageNet's arms: CIFAR-10's with other γ.  AdaHessian's γ is not stated in the paper: CIFAR-10's is used."""
    gammas = dict.fromkeys(("apollo", "sgd", "adam*", "radam*"), 1e-4) | dict.fromkeys(("adam", "radam", "adabelief"), 0.1)
    gammas["apollow"] = 1e-2
    arms = {name: arm.but(weight_decay=gammas.get(name, arm.weight_decay)) for name, arm in images().items()}
    return {**arms, "frozen": frozen(arms["apollo"]), "sgd-w": floor_sgd(arms["apollo"])}


def frozen(apollo: Arm) -> Arm:
    """Returns Apollo with B = 0, which it is exactly where all coordinates are on the floor; the rest alike."""
    return apollo.but(name="frozen", method="frozen", numbers={})


def floor_sgd(apollo: Arm) -> Arm:
    """Returns SGD with momentum at (η/σ)(1-β), the rest alike: `frozen` without its bias correction."""
    return apollo.but(name="sgd-w", method="sgd", lr=round(apollo.lr / SIGMA * (1 - BETA), 12), numbers={})


# -- text ---------------------------------------------------------------------------------------------------------------

CLIP = ("global", 1.0)


def billion_words(warmup: int = 0) -> dict[str, Arm]:
    """Returns One Billion Words' arms; the paper states no warm-up for this task."""
    adam = Arm(name="adam", method="adam", lr=1e-3, clip=CLIP)
    apollo = Arm(name="apollo", method="apollo", lr=0.1, clip=CLIP, warmup=warmup)
    belief = {"curvature.eps": 1e-12, "rectifier.eps": 1e-12}
    rows = (
        apollo,
        Arm(name="sgd", method="sgd", lr=0.5, clip=CLIP),
        adam,
        adam.but(name="radam", method="radam"),
        adam.but(name="adabelief", method="adabelief", numbers=belief),
        frozen(apollo),
        floor_sgd(apollo),
    )
    return {arm.name: arm for arm in rows}


def wmt(scale: float = 1.0) -> dict[str, Arm]:
    """Returns WMT 2014's arms; scale: a factor before the lengths of warm-up, for shorter runs."""
    adam = Arm(
        name="adam", method="adam", lr=5e-4, weight_decay=1e-4, decay="decoupled", clip=CLIP, warmup=round(4000 * scale),
        numbers={"curvature.beta": 0.98}, rate=RateSchedule("inverse-sqrt"),
    )  # fmt: skip
    plain = adam.but(numbers={}, rate=None)
    apollo = Arm(name="apollo", method="apollo", lr=0.1, weight_decay=1e-8, clip=CLIP, warmup=round(1000 * scale))
    rows = (
        apollo,
        Arm(name="sgd", method="sgd", lr=0.1, weight_decay=1e-6, clip=CLIP, warmup=round(1000 * scale)),
        adam,
        plain.but(name="radam", method="radam", warmup=0),
        plain.but(name="adabelief", method="adabelief", warmup=round(1000 * scale)),
        frozen(apollo),
        floor_sgd(apollo),
    )
    return {arm.name: arm for arm in rows}


# -- the toy network ----------------------------------------------------------------------------------------------------

TOY_RATES = (0.2, 0.1, 0.05, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002)
TOY_RATE = RateSchedule("exponential", factor=0.95, pieces=50)


def _two_loops(memory: int) -> UnitLength:
    """Returns the variant's own solver, with another memory."""
    return UnitLength(inner=TwoLoop(memory=memory, damped=True, tiny=1e-30), exponent=0.5)


def toy(warmup: int = 10) -> dict[str, Arm]:
    """Returns the toy network's arms: SdLBFGS with a memory of 100 pairs, as the paper has it, and of 10.

    Beside them torch's L-BFGS, one iteration per batch: the same recursion on successive minibatches, undamped, and directions
    of any length.
    """
    apollo = Arm(name="apollo", method="apollo", lr=1e-3, warmup=warmup)
    history = {"max_iter": 1, "history_size": 100}
    rows = (
        apollo,
        Arm(name="sgd", method="sgd", lr=0.01),
        Arm(name="adam", method="adam", lr=1e-3),
        frozen(apollo),
        floor_sgd(apollo),
        *(Arm(name=f"sdlbfgs m={m}", method="sdlbfgs", lr=0.1, numbers={"solve": _two_loops(m)}) for m in (100, 10)),
        Arm(name="lbfgs m=100", method="sandbox.studies.extra:ContiguousLBFGS", lr=0.1, numbers=history),
    )
    return {arm.name: arm for arm in rows}


# -- the digits network, where nothing was chosen by the paper ----------------------------------------------------------


def digits(warmup: int = 25) -> dict[str, Arm]:
    """Returns the standard arms at their own default rates without decay."""
    apollo = Arm(name="apollo", method="apollo", lr=0.01, warmup=warmup)
    rows = (
        apollo,
        Arm(name="sgd", method="sgd", lr=0.1),
        Arm(name="adam", method="adam", lr=1e-3),
        Arm(name="radam", method="radam", lr=1e-3),
        Arm(name="adabelief", method="adabelief", lr=1e-3),
        frozen(apollo),
        floor_sgd(apollo),
    )
    return {arm.name: arm for arm in rows}
