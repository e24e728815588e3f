"""A whole grid of variants in one vectorised run.

    result = sandbox.ensemble.run(["apollo", "adamw"], "digits-mlp", lr=[1e-3, 1e-2], seeds=8, steps=200, evaluations=4)
    result.frame                # one row per member: variant, lr, seed, last losses, first step that was not finite
    result.loss                # (members, steps)

Recipes of equal structure are stacked and make their steps together under torch.func.vmap; each seed has its own start and
order of batches, so a member is the run that it would be alone, to rounding.
"""

from sandbox.ensemble.grid import Unbatchable
from sandbox.ensemble.members import Config, Group, groups, stacked
from sandbox.ensemble.run import Ensemble, run

__all__ = ["Config", "Ensemble", "Group", "Unbatchable", "groups", "run", "stacked"]
