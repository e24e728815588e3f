"""Known differences between implementations, each as a change of a method: what `explain` tries.

A change of a recipe exchanges a block, here sometimes for a form that published code has by mistake or by taste; a
change of any method alters what it is shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sandbox.blocks import (
    ELEMENT,
    EMA,
    AbsoluteFloor,
    AdamWDecay,
    CorrectedRoot,
    Curvature,
    Decay,
    Flow,
    HeavyBall,
    L2Decay,
    Moment,
    NesterovEMA,
    NoDecay,
    Number,
    Orthogonalize,
    Pairs,
    ProximalDecay,
    RawEMA,
    Rectifier,
    SecondMoment,
    ShiftedSecondMoment,
    SoftAbsolute,
    SquareRoot,
    Successive,
    SumOfSquares,
    WeakSecant,
    block,
    number,
)
from sandbox.equivalence import methods
from sandbox.equivalence.methods import Method
from sandbox.optimizer import groups
from sandbox.recipe import Recipe


@block
class RootInside(Rectifier):
    """D = √(B̄ + ε): ε inside the root."""

    eps: Number = number(default=1e-8, range="[0, inf)")
    latex = r"D_t = \sqrt{\bar B_t + \epsilon}"

    def read(self, B: Tensor) -> Tensor:
        """√(B̄ + ε)."""
        return (B + self.eps).sqrt()


@block
class CorrectedRootInside(CorrectedRoot):
    """D = √((v + ε)/(1-βᵗ)): ε inside the root, before the correction."""

    latex = r"D_t = \sqrt{(v_t + \epsilon)/(1-\beta^t)}"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """D."""
        return (x.value + self.eps).sqrt() * x.c.scale, state


@block
class RootOrEps(Rectifier):
    """D = max(√B̄, ε)."""

    eps: Number = number(default=1e-8, range="[0, inf)")
    latex = r"D_t = \max(\sqrt{\bar B_t}, \epsilon)"

    def read(self, B: Tensor) -> Tensor:
        """max(√B̄, ε)."""
        return B.sqrt().clamp(min=self.eps)


@block
class LargestCorrected(SecondMoment):
    """B = max(B, v/(1-βᵗ)): AMSGrad with the correction before the maximum."""

    maximum: bool = True
    recalls = False
    latex = r"B_t = \max(B_{t-1}, v_t/(1-\beta^t))"

    def step(self, x: Flow, *, v: Tensor, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The largest corrected v, and both."""
        v = self.beta * v + (1 - self.beta) * x.g.square()
        largest = torch.maximum(state["v_max"], v * x.c.unbias)
        return largest, {"v": v, "v_max": largest}


@block
class FromFirstSquare(Curvature):
    """v₁ = g₁², v_t = β v + (1-β) g²: begun with the first square instead of corrected."""

    beta: Number = number(default=0.999, range="[0, 1)")
    recalls = False
    state = {"v": ELEMENT}
    latex = r"v_1 = g_1^2,\quad v_t = \beta v_{t-1} + (1-\beta) g_t^2"

    def step(self, x: Flow, *, v: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """v."""
        v = torch.where(x.t > 1, self.beta * v + (1 - self.beta) * x.g.square(), x.g.square())
        return v, {"v": v}


@block
class NesterovHat(RawEMA):
    """u = (β m + (1-β) g)/(1-βᵗ): Nesterov's look ahead on the average of Adam."""

    latex = r"u_t = (\beta m_t + (1-\beta) g_t)/(1-\beta^t)"

    def step(self, x: Flow, *, m: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """u and m."""
        m = self.beta * m + (1 - self.beta) * x.value
        return (self.beta * m + (1 - self.beta) * x.value) * x.c.unbias, {"m": m}


@block
class RateInside(Moment):
    """v = μ v + η g, θ = θ - v: the rate inside the buffer; with Nesterov θ = θ - (η g + μ v)."""

    momentum: Number = number(default=0.9, range="[0, 1)")
    nesterov: bool = False
    state = {"m": ELEMENT}
    recalls = False
    latex = r"v_t = \mu v_{t-1} + \eta g_t,\quad u_t = v_t/\eta"

    def step(self, x: Flow, *, m: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """v/η and v."""
        m = self.momentum * m + x.lr * x.value
        u = x.lr * x.value + self.momentum * m if self.nesterov else m
        return u / torch.where(x.lr > 0, x.lr, 1.0), {"m": m}


@block
class FormOfDecay(Decay):
    """θ decays by (1 - f γ), f = η, 1 ("unscaled") or η/η₁ ("relative"), before the step or after it.

    unit: f is η over it; 0: f = 1.
    """

    weight_decay: Number = number(default=0.0, range="[0, inf)")
    unit: Number = number(default=1.0, range="[0, inf)")
    after: bool = False
    latex = r"\theta \leftarrow (1 - f\gamma)\,\theta"

    def _keep(self, x: Flow) -> Any:
        unit = torch.as_tensor(self.unit, dtype=x.theta.dtype)
        return 1 - self.weight_decay * torch.where(unit > 0, x.lr / torch.where(unit > 0, unit, 1.0), 1.0)

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """u, decayed too where the decay comes after the step."""
        return (x.value * self._keep(x) if self.after else x.value), state

    def shrink(self, x: Flow) -> Tensor:
        """(1 - fγ) θ."""
        return self._keep(x) * x.theta


@block
class OtherSign(WeakSecant):
    """α = (dᵀy - dᵀB d)/(‖d‖₄ + ε)⁴: the sign of dᵀB d turned."""

    latex = r"\alpha = \frac{d^T y - d^T B d}{(\lVert d\rVert_4 + \epsilon)^4},\quad B \leftarrow B - (1-\delta)\,\alpha\, d^2"

    def update(self, x: Flow, *, B: Tensor) -> dict[str, Tensor]:
        """B after the correction."""
        # -B - (1-δ) α d² is what the rule makes of -B
        return {"B": super().update(x, B=-B)["B"] + 2 * B}


@block
class Negated(Pairs):
    """y = m_{t-1} - m_t: the sign of y turned."""

    successive = True
    latex = r"y_t = m_{t-1} - m_t"

    def step(self, x: Flow, **state: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """-(m_t - m_{t-1})."""
        return (None, x.m_old - x.m), state


@dataclasses.dataclass(frozen=True)
class Change:
    """A known difference.  text: completes "equal with …".  topic: of two changes on one topic only one is made."""

    text: str
    topic: str
    method: Method


def known_changes(method: Method, other: Method, lr: float) -> list[Change]:
    """Returns every change that can be made to a method; lr: the rate of the comparison."""
    changes = [Change(text, "given", dataclasses.replace(method, **fields)) for text, fields in _SHOWN.items()]
    declared = {k: v for k, v in other.numbers().items() if (mine := method.numbers().get(k)) is not None and mine != v}
    if method.recipe is None:
        return [*_options(method, declared), *changes]
    together = dataclasses.replace(method, counts_together=True)
    changes.append(Change("one count of steps for all tensors, those without a gradient too", "count", together))
    if declared:
        new = with_numbers(method.recipe, declared)
        text = ", ".join(f"{name} {value:g}" for name, value in declared.items())
        changes.insert(0, Change(text, "numbers", dataclasses.replace(method, recipe=new)))
    for topic, rows in _recipes(method.recipe, lr, other.numbers().get("weight_decay", 0.0)):
        for text, slots in rows.items():
            try:
                new = method.recipe.replace(**slots, name=method.recipe.name)
            except (ValueError, TypeError):
                continue
            if new != method.recipe:
                changes.append(Change(text, topic, dataclasses.replace(method, recipe=new)))
    return changes


_SHOWN: dict[str, dict[str, Any]] = {
    "missing gradients taken as zeros": {"missing_is_zero": True},
    "the sign of the gradient turned": {"sign": -1.0},
    "the rate of its construction kept, whatever the schedule says": {"keeps_first_rate": True},
}


def with_numbers(recipe: Recipe, values: dict[str, float]) -> Recipe:
    """Returns the recipe with other values of those of beta1, beta2, eps and weight_decay that it has."""
    optimizer = Method(recipe.name, recipe=recipe).build([torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)], 1e-3)
    for name, value in values.items():
        methods.write(optimizer, name, value)
    return optimizer.current_recipe(0)


def _options(method: Method, declared: dict[str, float]) -> Iterator[Change]:
    """Changes of a torch optimizer: its arguments that are true or false, and numbers that the other declares."""
    arguments = {**methods.arguments(method.factory), **method.options}
    for name, value in arguments.items():
        if isinstance(value, bool) and name not in ("foreach", "fused", "capturable", "differentiable"):
            changed = {**method.options, name: not value}
            yield Change(f"{name}={not value}", name, dataclasses.replace(method, options=changed))
    betas = list(arguments["betas"]) if isinstance(arguments.get("betas"), tuple | list) else None
    changed = {}
    for name, value in declared.items():
        if betas and name in ("beta1", "beta2"):
            betas[int(name[-1]) - 1] = value
            changed["betas"] = tuple(betas)
        elif name in arguments:
            changed[name] = value
    if changed:
        text = ", ".join(f"{name} {value}" for name, value in changed.items())
        yield Change(text, "numbers", dataclasses.replace(method, options={**method.options, **changed}))


def _recipes(recipe: Recipe, lr: float, weight_decay: float) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """(topic, text -> slots to exchange) of what is known of a recipe's blocks."""
    moment, curvature, rectifier, solve = recipe.moment, recipe.curvature, recipe.rectifier, recipe.solve
    values = recipe.hyperparameters()
    beta: Any = values.get("moment.beta", values.get("moment.momentum"))
    if beta is not None:
        ema, corrected = EMA(beta=beta, bias_correction=False), RawEMA(beta=beta)
        yield (
            "moment",
            {
                ("m = β m + (1-β) g" if isinstance(moment, HeavyBall) else "no bias correction of m"): {"moment": ema},
                "bias correction of m": {"moment": corrected},
                "Adam's m̂ = m/(1-β₁ᵗ) in place of the average itself": {"moment": EMA(beta=beta)},
                "Nesterov's look ahead, u = (β₁ m + (1-β₁) g)/(1-β₁ᵗ)": {"moment": NesterovHat(beta=beta)},
                "Nesterov's look ahead, u = β m + (1-β) g": {"moment": NesterovEMA(beta=beta)},
                "m = μ m + g": {"moment": HeavyBall(momentum=beta)},
                "Nesterov's look ahead, u = g + μ m with m = μ m + g": {"moment": HeavyBall(momentum=beta, nesterov=True)},
                "dampening, m = μ m + (1-μ) g after the first step": {"moment": HeavyBall(momentum=beta, dampening=beta)},
                "the rate inside the buffer, v = μ v + η g": {"moment": RateInside(momentum=beta)},
                "the rate inside the buffer, with Nesterov": {"moment": RateInside(momentum=beta, nesterov=True)},
            },
        )
    beta2, eps = values.get("curvature.beta"), values.get("rectifier.eps")
    if isinstance(curvature, SecondMoment | SumOfSquares | ShiftedSecondMoment) and eps is not None:
        raw = {} if beta2 is None else {"curvature": SecondMoment(beta=beta2, bias_correction=False)}
        hat = {} if beta2 is None else {"curvature": SecondMoment(beta=beta2)}
        roots: dict[str, dict[str, Any]] = {
            "ε inside the root, √(v̂ + ε)": {"rectifier": RootInside(eps=eps)},
            "ε² inside the root, √(v̂ + ε²)": {"rectifier": RootInside(eps=eps * eps)},
            "max(√v̂, ε) in place of √v̂ + ε": {"rectifier": RootOrEps(eps=eps)},
            "ε outside the root, √v̂ + ε": {"rectifier": SquareRoot(eps=eps), **hat},
        }
        if beta2 is not None:
            roots |= {
                "ε before the bias correction, (√v + ε)/√(1-β₂ᵗ)": {"rectifier": CorrectedRoot(beta=beta2, eps=eps), **raw},
                "ε inside the root, before the bias correction": {"rectifier": CorrectedRootInside(beta=beta2, eps=eps), **raw},
                "ε added to v at each step": {"curvature": ShiftedSecondMoment(beta=beta2, eps=eps)},
                "ε added to v at each step, and not outside": {
                    "curvature": ShiftedSecondMoment(beta=beta2, eps=eps), "rectifier": SquareRoot(eps=0.0)
                },
                "no bias correction of v": {**raw, "rectifier": SquareRoot(eps=eps)},
                "no bias correction of v, ε inside the root": {**raw, "rectifier": RootInside(eps=eps)},
                "v begun with the first g², not corrected": {"curvature": FromFirstSquare(beta=beta2)},
                "bias correction of v": {**hat, "rectifier": SquareRoot(eps=eps)},
                "AMSGrad, the maximum before the correction": {"curvature": SecondMoment(beta=beta2, maximum=True)},
                "AMSGrad, the correction before the maximum": {"curvature": LargestCorrected(beta=beta2)},
                "no AMSGrad": hat,
            }  # fmt: skip
        yield "root", roots
        if beta2 is not None and beta is not None:
            none = {"moment": EMA(beta=beta, bias_correction=False), **raw}
            yield (
                "moment, root",
                {
                    "no bias correction of m and v": {**none, "rectifier": SquareRoot(eps=eps)},
                    "no bias correction of m and v, ε inside the root": {**none, "rectifier": RootInside(eps=eps)},
                },
            )
    if isinstance(recipe.pairs, Successive) and any("y" in b.needs for _, b in recipe.blocks()):
        yield "pairs", {"the sign of y turned": {"pairs": Negated()}}
    if isinstance(curvature, WeakSecant):
        fields = {f.name: getattr(curvature, f.name) for f in dataclasses.fields(curvature)}
        other = dataclasses.replace(curvature, stepsize_correction=not curvature.stepsize_correction)
        rows: dict[str, dict[str, Any]] = {
            "the sign of dᵀB d turned": {"curvature": OtherSign(**fields)},
            "dᵀy over the rate" if curvature.stepsize_correction else "dᵀy as it is": {"curvature": other},
        }
        if isinstance(rectifier, AbsoluteFloor | SoftAbsolute):
            sigma: Any = rectifier.sigma
            yield (
                "rectifier",
                {
                    "D = √(B² + σ²)": {"rectifier": SoftAbsolute(sigma=sigma)},
                    "D = max(|B|, σ)": {"rectifier": AbsoluteFloor(sigma=sigma)},
                },
            )
            rows["ε/σ in place of ε"] = {"curvature": dataclasses.replace(curvature, eps=curvature.eps / sigma)}
        yield "curvature", rows
    if isinstance(solve, Orthogonalize):
        scales = {"original": "√max(1, m/n)", "rms": "0.2 √max(m, n)", "none": "1"}
        factors = {f"orthogonal steps times {text}": dataclasses.replace(solve, scale=key) for key, text in scales.items()}
        yield "solve", {text: {"solve": new} for text, new in factors.items()}
        yield "precision", {"orthogonalization in bfloat16": {"solve": dataclasses.replace(solve, bfloat16=not solve.bfloat16)}}
    mine = (value for name, value in values.items() if name.endswith("weight_decay") and not name.startswith(groups.INNER))
    yield "decay", _decays(recipe, next(mine, weight_decay), lr)


def _decays(recipe: Recipe, g: Any, lr: float) -> dict[str, dict[str, Any]]:
    """Where a weight decay γ comes."""
    rest = tuple(each for each in recipe.gradient if not isinstance(each, L2Decay))
    forms: dict[str, Decay] = {
        "decoupled decay before the step, θ ← (1-ηγ)θ": AdamWDecay(weight_decay=g),
        "decoupled decay after the step": FormOfDecay(weight_decay=g, after=True),
        "decay that is not scaled by the rate, θ ← (1-γ)θ": FormOfDecay(weight_decay=g, unit=0.0),
        "decay after the step, not scaled by the rate": FormOfDecay(weight_decay=g, unit=0.0, after=True),
        "decay scaled by the rate over the first one, θ ← (1-γη/η₁)θ": FormOfDecay(weight_decay=g, unit=lr),
        "decay scaled by the rate over the first one, after the step": FormOfDecay(weight_decay=g, unit=lr, after=True),
        "decay as a proximal step, θ/(1+ηγ)": ProximalDecay(weight_decay=g),
    }
    slots: dict[str, dict[str, Any]] = {text: {"decay": form, "gradient": rest} for text, form in forms.items()}
    return {"decay in the gradient, g + γθ": {"decay": NoDecay(), "gradient": (L2Decay(weight_decay=g), *rest)}, **slots}
