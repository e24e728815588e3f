"""Curvature of a loss at a point: products with the Hessian, its diagonal, its spectrum.

One idea carries the package: **everything is read off Hessian-vector products** of `loss(model, batch)`, the form that every
task has.  `model` is a module, and results are trees of its parameters by name; or it is the tree of tensors that a pure loss
takes in its place (a dict for `sandbox.tasks.PureTask`), and results have that tree.  Neither a module, its buffers and
gradients nor the random generators change.

    model, loss = MyNetwork(), lambda model, batch: cross_entropy(model(batch[0]), batch[1])
    curvature.diagonal(loss, model, (X, y)).values                                        # exact: {"0.weight": …}
    curvature.diagonal(loss, model, (X, y), parameters=optimizer.param_groups[0]["params"])

    task = tasks.get("digits-mlp", dtype=torch.float64)
    params, batch = task.init(seed=0), task.full("train")
    curvature.diagonal(task.loss, params, batch, method="hutchinson", num_vectors=100).standard_error
    curvature.product(task.loss, params, batch, v)                                        # H v, a tree as v
    curvature.extreme_eigenvalues(task.loss, params, batch, k=2, which="both").values
    curvature.spectral_density(task.loss, params, batch)                                  # the extra `curvature`

`batch` is one batch, or a list of batches: then the loss is their mean weighted by their sizes, which is the loss of all
rows together where a batch's loss is a mean over its rows.  A list of tensors, [X, y], is one batch, as a DataLoader gives it;
a list of tuples, lists or dicts is several.  Several batches of one tensor each are [(X1,), (X2,)].

Apollo's B estimates η·H where the stepsize correction is on: compare B/η with the diagonal.
"""

from sandbox.curvature.diagonals import METHODS, Diagonal, diagonal
from sandbox.curvature.product import MODES, Hessian, product
from sandbox.curvature.spectrum import Density, Eigenvalues, extreme_eigenvalues, spectral_density
from sandbox.curvature.stochastic import DISTRIBUTIONS, hutchinson_variance

__all__ = [
    "DISTRIBUTIONS",
    "METHODS",
    "MODES",
    "Density",
    "Diagonal",
    "Eigenvalues",
    "Hessian",
    "diagonal",
    "extreme_eigenvalues",
    "hutchinson_variance",
    "product",
    "spectral_density",
]
