"""Methods that take the gradient at a point up the slope."""

from __future__ import annotations

from sandbox.blocks import Sharpness
from sandbox.recipe import Recipe
from variants.peers import sgd


def sam() -> Recipe:
    """SGD with the gradient at θ + ρ g/‖g‖, ρ = .05, the norm over all tensors (Foret et al. 2021, SAM).

    Differs from davda54/sam where batches are spread over ranks: there each rank climbs its own gradient.
    """
    return sgd().replace(gradient=(Sharpness(rho=0.05),))


def asam() -> Recipe:
    """SGD with the gradient at θ + ρ w² g/‖w g‖, w = |θ| + .01, ρ = .5 (Kwon et al. 2021, ASAM).

    Differs from the authors' code, whose w is 1 for parameters without "weight" in their names.
    """
    return sgd().replace(gradient=(Sharpness(rho=0.5, adaptive=True, shift=0.01),))
