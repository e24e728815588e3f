"""What one step has computed so far: the `Flow` that blocks read, by the paper's names, and from which slot on."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from sandbox.blocks.scope import Over
from sandbox.utils import suggest

# The slots in the order of a step.
SLOTS = (
    "gradient",
    "moment",
    "pairs",
    "basis",
    "curvature",
    "averaging",
    "rectifier",
    "solve",
    "adjust",
    "decay",
    "projection",
    "readout",
)

# What the slots compute, and which slot makes it: it can be read in the slots after that one.
COMPUTED = {
    "m": "moment",
    "u": "moment",
    "m_old": "gradient",
    "a": "gradient",
    "s": "pairs",
    "y": "pairs",
    "outside": "basis",
    "left": "basis",
    "right": "basis",
    "B": "curvature",
    "averaged": "averaging",
    "D": "rectifier",
    "d": "decay",
    "theta_new": "readout",
}

# What a step has only if some block declares it in `needs`.
NEEDS = (
    "d_old",
    "g_old",
    "s",
    "y",
    "m",
    "grad_norm",
    "again",
    "left",
    "right",
    "hessian",
    "sampled",
    "product",
    "displaced",
    "G",
    "A",
)


class Flow:
    """What one step has computed so far.  Local to the step; blocks read it.

    From the start: t (number of this update, from 1), lr (η_t), lr_old (η_{t-1}, the rate with which `d_old` was applied),
    theta (θ before the step), g (the gradient, after the gradient blocks run so far), tensor and scope (reductions over each
    parameter tensor, and over the recipe's scope), a (weight that the moment gives to the newest gradient).
    For each block: value (what the previous slot gave), c (its coefficients), due (whether its periodic work is due).
    Of the step before, for blocks that declare it in `needs`, 0 at first: d_old (d_t, the previous direction), g_old (the
    gradient, after the gradient blocks), again (∇f(θ_t; ξ_{t-1}), the last batch's gradient at the present point).
    From outside, for blocks that declare it: grad_norm (‖g‖₂ over all tensors, before any gradient block), hessian (z ⊙ Hz),
    sampled (the gradient at labels drawn from the model), product (Hv, v what the pairs block asks for), displaced
    (the same batch's gradient at θ + e), G and A (K-FAC's factors of this batch, (m, m) and (n, n)).
    From the slots, in the order of a step: m_old, m (the moment's average before and after), u (numerator of the direction);
    s, y (the pair: a step, -η d as a rule, and the change of the gradient along it, m - m_old as a rule); outside (g, u, d_old,
    y, m, … in standard coordinates), left (m, 1) and right (1, n) (eigenvalues of the basis's factors); B; averaged (what the
    averaging block made of B); D; d (the direction of this step); theta_new (θ after it); after (the new state, by name).

    Raises AttributeError, with the reason, where a block reads what is not there (yet).
    """

    t: Any
    lr: Any
    lr_old: Any
    theta: Tensor
    g: Tensor
    tensor: Over
    scope: Over
    a: Any
    # of the block whose turn it is
    slot: str
    value: Any
    c: SimpleNamespace
    due: Any
    # declared in `needs`
    d_old: Tensor
    g_old: Tensor
    again: Tensor
    grad_norm: Tensor
    hessian: Tensor
    sampled: Tensor
    product: Tensor
    displaced: Tensor
    G: Tensor
    A: Tensor
    # made by the slots
    m_old: Tensor
    m: Tensor
    u: Tensor
    s: Tensor
    y: Tensor
    outside: Mapping[str, Any]
    left: Tensor
    right: Tensor
    B: Any
    averaged: Any
    D: Any
    d: Tensor
    theta_new: Tensor
    after: Mapping[str, Tensor]

    def __init__(self, **values: Any) -> None:
        self.set(**values)

    def set(self, **values: Any) -> None:
        """Sets what is known; None stands for what this step does not have."""
        vars(self).update({name: value for name, value in values.items() if value is not None})

    def __getattr__(self, name: str) -> Any:
        # called for what is not there
        slot = vars(self).get("slot", "gradient").partition(".")[0]
        maker = COMPUTED.get(name)
        if name.startswith("__") or (maker is None and name not in Flow.__annotations__):
            raise AttributeError(suggest.unknown("field of a step", name, Flow.__annotations__))
        if maker is not None and SLOTS.index(slot) <= SLOTS.index(maker):
            raise AttributeError(f"{name} is not there yet in slot {slot!r}: slot {maker!r} makes it")
        if name in NEEDS:
            raise AttributeError(f"this step has no {name}: a block that reads x.{name} declares it, needs = ({name!r},)")
        raise AttributeError(f"this step has no {name}")
