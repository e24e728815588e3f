"""F13: the loss multiplied by a power of two, in float64."""

import torch

from sandbox.studies.study import Arm, Part, Study

POWERS = (-10, 0, 10)
ARMS = (
    Arm(name="scale-invariant", method="scale-invariant", lr=0.01),
    Arm(name="apollo", method="apollo", lr=0.01),
    Arm(name="adam", method="adam", lr=1e-3),
)

STUDY = Study(
    key="F13",
    name="scale",
    question="Which methods give the same parameters when the loss is multiplied by a constant?",
    note="Complete in every tier. Powers of two are exact: the losses of a method that is invariant are equal bitwise.",
    tiers={
        tier: [
            Part(
                name=f"2^{k}", task="digits-mlp-scaled", options={"factor": 2.0**k, "dtype": torch.float64}, arms=ARMS,
                seeds=seeds, steps=steps,
            )
            for k in POWERS
        ]
        for tier, seeds, steps in (("smoke", 1, 40), ("cpu", 3, 200))
    },
)  # fmt: skip
