"""Methods that own more of the loop than a step of a recipe: they call the closure as often as they like.

optimizer = sandbox.drivers.HessianFree(model.parameters())
optimizer.step(closure)            # the closure returns the loss and leaves backward() to the step
"""

from sandbox.drivers.hessian_free import HessianFree

__all__ = ["HessianFree"]
