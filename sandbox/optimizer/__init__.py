"""`Optimizer`, the torch.optim face of a recipe."""

from sandbox.optimizer.optimizer import Optimizer

__all__ = ["Optimizer"]
