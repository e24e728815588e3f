"""F1: a toy network, Apollo against first-order methods and L-BFGS on minibatches."""

from sandbox.studies.arms import TOY_RATE, toy
from sandbox.studies.study import Part, Search, Study

_ARMS = tuple(toy().values())
_SEARCHED = tuple(arm for arm in _ARMS if arm.name != "sgd-w")  # with a rate of its own it is sgd

STUDY = Study(
    key="F1",
    name="toy",
    question="Does Apollo's training loss fall faster than a quasi-Newton method's with a memory, per update and per second?",
    note="Each arm's rate is searched until the best one lies inside, in runs of full length. A rate falls 50 times by 5 %, as "
    "in the paper, and SdLBFGS' also by its own 1/√t.",
    tiers={
        "smoke": [
            Part(
                name="main", task="lenet-fashion", options={"images": 640, "evaluated": 200}, arms=_ARMS, seeds=1, steps=20,
                evaluations=1,
            )
        ],
        "cpu": [
            Part(
                name="main", task="lenet-fashion", options={"images": 4000, "epochs": 3}, arms=_SEARCHED, seeds=6,
                rate=TOY_RATE, evaluations=3, search=Search(steps=186),
            )
        ],
        "paper": [Part(name="main", task="cnn-cifar10", arms=_ARMS, seeds=5, rate=TOY_RATE, evaluations=50)],
    },
)  # fmt: skip
