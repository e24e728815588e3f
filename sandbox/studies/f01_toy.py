"""F1: a toy network, Apollo against first-order methods and L-BFGS on minibatches."""

from sandbox.studies.arms import TOY_RATE, TOY_RATES, toy
from sandbox.studies.study import Part, Search, Study

_ARMS = tuple(toy().values())
_SEARCHED = tuple(arm.but(lr=1e-3) for arm in _ARMS if arm.name != "sgd-w")  # factors of 1e-3 are then the paper's nine rates

STUDY = Study(
    key="F1",
    name="toy",
    question="Does Apollo's training loss fall faster than a quasi-Newton method's with a memory, per update and per second?",
    note="Each arm has nine rates; a rate falls 50 times by 5 %, as in the paper, and SdLBFGS' also by its own 1/√t.",
    tiers={
        "smoke": [
            Part(
                name="main", task="lenet-fashion", options={"images": 640, "evaluated": 200}, arms=_ARMS, seeds=1, steps=20,
                evaluations=1,
            )
        ],
        "cpu": [
            Part(
                name="main", task="lenet-fashion", options={"images": 4000, "epochs": 3}, arms=_SEARCHED, seeds=3,
                rate=TOY_RATE, evaluations=3,
                search=Search(factors=tuple(round(rate / 1e-3, 6) for rate in TOY_RATES), steps=40),
            )
        ],
        "paper": [Part(name="main", task="cnn-cifar10", arms=_ARMS, seeds=5, rate=TOY_RATE, evaluations=50)],
    },
)  # fmt: skip
