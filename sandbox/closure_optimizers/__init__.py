"""Optimizers that call the closure themselves, as often as they need within one step.

optimizer = sandbox.closure_optimizers.HessianFree(model.parameters())
optimizer.step(closure)            # the closure returns the loss and leaves backward() to the step
optimizer = sandbox.closure_optimizers.SFO(model.parameters(), count=len(batches))
optimizer.step(closure)            # closure(i) returns the loss of batch i
"""

from sandbox.closure_optimizers.hessian_free import HessianFree
from sandbox.closure_optimizers.sum_of_functions import SFO

__all__ = ["SFO", "HessianFree"]
