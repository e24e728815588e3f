"""Whether two optimizers make the same steps; where they part, and which known difference explains it.

    print(sandbox.same("adamw", "torch.optim:AdamW"))

`methods`: what can be compared.  `battery`: the cases.  `changes`: the known differences.  `explain`: which of them it is.
"""

from sandbox.equivalence.verdict import Sameness, same

__all__ = ["Sameness", "same"]
