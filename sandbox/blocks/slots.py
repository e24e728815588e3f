"""What each slot of a recipe takes: the base classes of blocks, one per slot, in the order of a step."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from sandbox.blocks.base import Block, Flow, broadcast_state, spread


class Schedule(Block):
    """A number as a function of t = 1, 2, …; fits wherever a number does."""

    slots: ClassVar[tuple[str, ...]] = ("number",)

    def __call__(self, t: Any) -> Any:
        """Value at update t (from 1)."""
        raise TypeError(f"{type(self).__name__} must define __call__(t)")


class Gradient(Block):
    """Turns the gradient (`value`, also `x.g`) into the one that the method sees.

    affine: whether it adds something that depends on θ alone, so that pairs of one batch can see it too: then `step` uses
    nothing but `x.value` and `x.theta`, and has no state.
    """

    slots: ClassVar[tuple[str, ...]] = ("gradient",)
    affine: ClassVar[bool] = False


class Moment(Block):
    """Averages the gradient.  First state: m; y = m_new - m_old; output: the numerator of the direction."""

    slots: ClassVar[tuple[str, ...]] = ("moment",)

    def weight(self, t: Any) -> Any:
        """Weight a of the newest gradient in m at update t."""
        return 1.0


class Pairs(Block):
    """Says which pair (s, y), a step and the change of the gradient along it, shows the curvature to the blocks after it.

    Output: (s, y); s None stands for the last step, -η d.
    """

    slots: ClassVar[tuple[str, ...]] = ("pairs",)
    own_step: ClassVar[bool] = False  # whether s is another one than the last step
    successive: ClassVar[bool] = False  # whether y compares the moment's averages

    def vector(self, t: Any, theta: Tensor, d: Tensor | None, /, *args: Any, **state: Any) -> Tensor:
        """The v with which a block that needs "product" wants H v at step t, from θ, the last direction and its own state."""
        raise TypeError(f"{type(self).__name__} must define vector(t, theta, d, **state): what H is multiplied with")


class Basis(Block):
    """Coordinates v' of the vectors v of a step, in which curvature, averaging, rectifier and solver work.

    The kernel takes g, u, d, y and m of the step into the basis, and the solver's output out of it; what is remembered of them
    stays in standard coordinates.  `update` sees them outside.
    before: whether the step already uses the new basis, or still that of the step before.
    `coefficients` may have "moving": 0.0 in a step that makes the basis and nothing else.
    """

    slots: ClassVar[tuple[str, ...]] = ("basis",)
    before: ClassVar[bool] = False
    limit: int | None = None  # of a matrix's longer side

    @property
    def factors(self) -> str | None:
        """At which labels, "sampled" or "given", the host takes K-FAC's factors, the inputs G and A; None: not at all."""
        return None

    def into(self, v: Tensor, /, *args: Any, **state: Any) -> Tensor:
        """v'."""
        return v

    def out(self, v: Tensor, /, *args: Any, **state: Any) -> Tensor:
        """The inverse of `into`."""
        return v

    def eigenvalues(self, *args: Any, **state: Any) -> tuple[Any, Any]:
        """Those of the left factor, (m, 1), and of the right, (1, n); None where the basis has none."""
        return None, None

    def count(self, t: Any) -> Any:
        """The number, from 1, that the other slots take for that of step t."""
        return t

    def advance(self, x: Flow, /, *args: Any, **state: Any) -> tuple[dict[str, Tensor], Any]:
        """New values of the state, and the order in which the new basis takes the old coordinates; None: the same."""
        return self.update(x, **state), None

    def carry(self, v: Tensor, order: Any) -> Tensor:
        """A per-coordinate state of a slot inside, for the next step's basis."""
        return v


class Curvature(Block):
    """Estimates a diagonal B from what the step has seen.

    A block whose B says something of the Hessian's diagonal says what, in `estimates` ("B", "B/η", "√B"), and returns it from
    `estimate`; `sandbox.inspect` and probes that ask for it compare this with the truth.
    """

    slots: ClassVar[tuple[str, ...]] = ("curvature",)
    estimates = ""  # what `estimate` gives, in terms of B; "" where it gives nothing

    def hessian(self, z: Tensor, Hz: Tensor) -> Tensor:
        """What a second-order block takes from one Hessian-vector product, in the parameter's own shape."""
        return z * Hz

    def estimate(self, B: Tensor, x: Flow) -> Tensor | None:
        """What B (averaged or not) says of the Hessian's diagonal, on its scale; None where it says nothing of it."""
        return None

    def residual(self, x: Flow) -> Tensor | None:
        """How far B is from the equation that the block solves, over the size of its terms; None where it solves none."""
        return None


class Averaging(Block):
    """Averages B (`value`) before it is rectified."""

    slots: ClassVar[tuple[str, ...]] = ("averaging",)


class Rectifier(Block):
    """Turns B into the diagonal D > 0 that divides the direction."""

    slots: ClassVar[tuple[str, ...]] = ("rectifier",)

    def on_floor(self, B: Tensor, /, *args: Any, **state: Any) -> Tensor | None:
        """Mask of coordinates where D is the floor and not the curvature; None where there is no floor."""
        return None


class Solve(Block):
    """Makes the direction p from u/D (`value`); `x.u` and `x.D` have both apart, `x.s` and `x.y` the last pair."""

    slots: ClassVar[tuple[str, ...]] = ("solve",)
    symbol: ClassVar[tuple[str, str]] = ("p", "p_t")  # what the decay's equation calls the output, as text and in LaTeX


class Adjust(Block):
    """Changes the direction p (`value`) before weight decay.

    All vectors of the step (`x.g`, `x.u`, …) stand in the coordinates of the parameters again, whatever the basis.
    """

    slots: ClassVar[tuple[str, ...]] = ("adjust",)


class Decay(Block):
    """Weight decay: what is added to the direction p (`value`; m/D, as a rule), or taken off θ."""

    slots: ClassVar[tuple[str, ...]] = ("decay",)
    in_direction: ClassVar[bool] = False  # whether the decay is part of d

    def add(self, u: Tensor, theta: Tensor, /, *args: Any, **state: Any) -> Tensor:
        """The direction d from u and θ before the step."""
        return u

    def recall(self, u: Tensor, theta: Tensor, lr: Any, /, *args: Any, **state: Any) -> Tensor:
        """The previous direction, from the previous u, θ as that step left it, and the rate η of that step."""
        return u

    def step(self, x: Flow, /, *args: Any, **state: Any) -> tuple[Any, dict[str, Tensor]]:
        """d and the new state."""
        new = broadcast_state(self, self.update(x, **state), state)
        return self.add(x.value, x.theta, **spread(self, new, x)), new

    def shrink(self, x: Flow) -> Tensor:
        """θ as the step starts from it."""
        return x.theta

    def check_lr(self, lr: float) -> None:
        """Raises ValueError where the rate of decay makes no sense together with `lr`."""


class Projection(Block):
    """Maps the new θ (`value`) into the feasible set."""

    slots: ClassVar[tuple[str, ...]] = ("projection",)


class Readout(Block):
    """Says which weights to evaluate.  `step` sees θ after the projection as `value`, and returns the θ to train on from.

    moves: whether that is another one than `value`: the way of θ is then not -η d, and d is stored as (θ_{t-1} - θ_t)/η, so
    that s = -η d holds for secants of gradients at θ.
    """

    slots: ClassVar[tuple[str, ...]] = ("readout",)
    moves: ClassVar[bool] = False

    def read(self, theta: Any, /, *args: Any, **state: Any) -> Any:
        """θ as it is."""
        return theta

    def evaluated(self, theta: Tensor, /, *args: Any, **state: Any) -> Tensor:
        """The weights to evaluate, from θ and the block's state after at least one step; coordinate by coordinate."""
        return theta
