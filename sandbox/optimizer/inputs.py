"""Calls a step's closure for what the step takes beside the gradient: Hessian-vector products, drawn labels, a second look.

A closure that is called more than once in a step runs with the state of the random generators (Python's, NumPy's, torch's) that
its first call began with, so that dropout drops the same units; afterwards they are where the first call left them.  Buffers
are not restored: a BatchNorm's running statistics move with every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from sandbox.curvature import factors, hessian, labels
from sandbox.distributed import replicas
from sandbox.optimizer import groups
from sandbox.recipe import Recipe, pure, rounding
from sandbox.recipe.analysis import AGAIN
from sandbox.utils import generators

Closure = Callable[[], Any]
ByParameter = dict[Tensor, Tensor]
Rows = list[tuple[dict[str, Any], Recipe]]  # parameter groups and their recipes

NO_CLOSURE = (
    "needs step(closure): the closure computes the loss of the step's batch and calls backward(), and the step calls it twice"
)


class Evaluation:
    """Makes the closure's calls of one step.  loss: what it returned.  inputs: name -> parameter -> tensor."""

    def __init__(
        self,
        closure: Closure | None,
        param_groups: list[dict[str, Any]],
        recipes: list[Recipe],
        states: dict[Any, Any],
        replicas_of: ProcessGroup | None = None,
    ) -> None:
        self.closure, self.states, self.replicas = closure, states, replicas_of
        self.groups = list(zip(param_groups, recipes, strict=True))
        self.inputs: dict[str, ByParameter] = {}
        self.loss: Any = None
        for _, recipe in self.groups:
            if recipe.analysis.needs_rows and replicas.several(self.replicas):
                raise RuntimeError(
                    f"recipe {recipe.name!r} draws labels for a batch or takes factors of layers on it, each rank its own: "
                    "it cannot be trained by replicas"
                )
            if recipe.analysis.second_order and self.replicas is None and replicas.several():
                raise RuntimeError(
                    f"recipe {recipe.name!r} takes its gradients from the loss itself, past DistributedDataParallel, so it "
                    f"must know over which ranks to average them: {replicas.HOW}"
                )
        if closure is None:
            for recipe in recipes:
                if recipe.analysis.second_order:
                    raise RuntimeError(f"recipe {recipe.name!r}: {hessian.HOW}")
                if recipe.analysis.inputs or recipe.analysis.second_gradient or recipe.analysis.needs_rows:
                    raise RuntimeError(f"recipe {recipe.name!r} {NO_CLOSURE}")
            return
        self.attached = any(recipe.analysis.second_order for recipe in recipes)  # the closure leaves backward() to the step
        self.params = [p for group in param_groups for p in group["params"] if p.requires_grad]
        drawing = [group for group, recipe in self.groups if recipe.analysis.draws_labels]
        displaced = self._needing("displaced")
        twice = bool(drawing or displaced) or any(recipe.analysis.second_gradient for recipe in recipes)
        self.start = generators.states() if twice else None
        seen = factors.Seen(self._factored("given"))
        with seen.watching(), torch.enable_grad():
            self.loss = closure()
            if self.attached:
                self._products()
        self._add_factors(seen)
        if self.attached:
            self.loss = self.loss.detach()
        if drawing:
            self._sampled(drawing)
        if displaced:
            self._displaced(displaced)

    def _needing(self, name: str) -> Rows:
        return [(group, recipe) for group, recipe in self.groups if name in recipe.analysis.inputs]

    def _draw(self, some: list[dict[str, Any]]) -> tuple[int, int]:
        """Returns seed and number of a step's draw; the next draw has the next number."""
        draws = max(group["draws"] for group in some)
        for group in some:
            group["draws"] = draws + 1
        return some[0]["seed"], draws

    def _factored(self, at: str) -> list[Tensor]:
        """Returns the parameters whose recipe takes K-FAC's factors at these labels."""
        return [p for _, p, recipe in self._each(self.groups) if recipe.basis.factors == at and p.requires_grad]

    def _each(self, some: Rows) -> list[tuple[dict[str, Any], Tensor, Recipe]]:
        """Returns (group, parameter, its recipe) of all parameters of some groups."""
        return [
            (group, p, one)
            for group, recipe in some
            for p, one in zip(group["params"], groups.recipes(group, recipe), strict=True)
        ]

    def _add_factors(self, seen: factors.Seen) -> None:
        """Makes the batch's factors inputs of the step."""
        for place, p in enumerate(seen.weights):
            if p.grad is not None:
                for name, factor in zip("GA", seen.pair(place), strict=True):
                    self.inputs.setdefault(name, {})[p] = factor.to(p.dtype)

    def _products(self) -> None:
        grads = hessian.gradients(self.loss, self.params)
        if not any(int(self.states[p]["step"]) for p in self.params):
            hessian.check_symmetry(grads, self.params)
        z: list[Tensor] | None = None
        if some := self._needing("hessian"):
            generator = hessian.generator(*self._draw([group for group, _ in some]))
            z = [hessian.rademacher(p, generator) for p in self.params]
            Hz = hessian.product(grads, self.params, z, keep=bool(self._needing("product")))
            block = {p: (group, recipe.curvature) for group, p, recipe in self._each(some)}
            self.inputs["hessian"] = {p: h for p, h in zip(self.params, Hz, strict=True) if p in block and h is not None}
        if some := self._needing("product"):
            of = {p: (group, recipe) for group, p, recipe in self._each(some)}
            v = [pure.product_vector(of[p][1], self.states[p], p) if p in of else torch.zeros_like(p) for p in self.params]
            Hv = hessian.product(grads, self.params, v, keep=False)
            rows = zip(self.params, Hv, strict=True)
            self.inputs["product"] = {p: _signed(h, of[p][0]) for p, h in rows if p in of and h is not None}
        self._average([None if g is None else g.detach() for g in grads])
        if z is not None:
            # of the replicas' mean: a block may take magnitudes, whose mean is another
            vectors = dict(zip(self.params, z, strict=True))
            for p, h in self.inputs["hessian"].items():
                group, curvature = block[p]
                self.inputs["hessian"][p] = _signed(curvature.hessian(vectors[p], h), group)

    def _average(self, grads: list[Tensor | None]) -> None:
        """Averages gradients and inputs over the replicas, if there are some, in one all_reduce; writes p.grad."""
        rows = {name: [values.get(p) for p in self.params] for name, values in self.inputs.items()}
        if self.replicas is not None:
            n, everything = len(self.params), [*grads, *(x for row in rows.values() for x in row)]
            means = replicas.average(everything, self.params * (1 + len(rows)), self.replicas)
            grads = means[:n]
            for k, name in enumerate(rows, start=1):
                pairs = zip(self.params, means[k * n : (k + 1) * n], strict=True)
                self.inputs[name] = {p: x for p, x in pairs if x is not None}
        for p, g in zip(self.params, grads, strict=True):
            p.grad = g

    def _sampled(self, drawing: list[dict[str, Any]]) -> None:
        """Computes the gradients and the factors at labels drawn from the model, by one more call."""
        of = {p: group for group, _ in self._needing("sampled") for p in group["params"]}
        seen = factors.Seen(self._factored("sampled"), drawn=True)
        with labels.Drawn(hessian.key(*self._draw(drawing))), seen.watching():
            grads = self._once_more()
        self._add_factors(seen)
        # ĝ, whose square estimates the Gauss-Newton matrix's diagonal
        self.inputs["sampled"] = {p: _signed(g, of[p]) for p, g in grads.items() if p in of}

    @torch.no_grad()
    def _displaced(self, some: Rows) -> None:
        """Computes the gradients at θ + e, by one more call; θ is put back to the bit."""
        now = [(group, groups.current(group)) for group, _ in some]
        rows = [(group, p, recipe.gradient[0]) for group, p, recipe in self._each(now) if p.grad is not None]
        kept, grads = [p.clone() for _, p, _ in rows], [_signed(p.grad, group) for group, p, _ in rows if p.grad is not None]
        moved = pure.displaced([block for *_, block in rows], kept, grads) if rows else []
        try:
            for (_, p, _), value in zip(rows, moved, strict=True):
                p.copy_(value)
            again = self._once_more()
        finally:
            for (_, p, _), value in zip(rows, kept, strict=True):
                p.copy_(value)
        self.inputs["displaced"] = {p: _signed(again[p], group) for group, p, _ in rows if p in again}

    def _once_more(self) -> ByParameter:
        """Returns the gradients of one more call with the generators as at the first; restores p.grad and the generators."""
        assert self.closure is not None
        before, after = [p.grad for p in self.params], generators.states()
        for p in self.params:
            p.grad = None  # so that zero_grad(set_to_none=False) does not write into them
        generators.put(self.start)
        try:
            with torch.enable_grad():
                loss = self.closure()
            if self.attached:
                grads = hessian.gradients(loss, self.params, create_graph=False)
                if self.replicas is not None:
                    grads = replicas.average(grads, self.params, self.replicas)
                return {p: g for p, g in zip(self.params, grads, strict=True) if g is not None}
            return {p: p.grad for p in self.params if p.grad is not None}
        finally:
            generators.put(after)
            for p, g in zip(self.params, before, strict=True):
                p.grad = g

    def look_again(self, stepped: Iterator[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Writes this batch's gradient at the point after the step into the states of the parameters that took part.

        Returns those that are not finite as (parameter, gradient); their states get the old gradient, as if nothing changed.
        """
        looking = {p: (group, recipe) for group, p, recipe in self._each(self.groups) if recipe.analysis.second_gradient}
        chosen = [p for p in stepped if p in looking] if looking else []
        if not chosen:
            return []
        grads, bad = self._once_more(), []
        for p in chosen:
            g = grads.get(p)
            g = torch.zeros_like(p) if g is None else g
            if not bool(g.sum().isfinite()) and not bool(g.isfinite().all()):
                bad.append((p, g))
                g = p.grad if p.grad is not None else torch.zeros_like(p)
            (group, recipe), state = looking[p], self.states[p]
            new = {AGAIN: _signed(g, group)}
            if state[AGAIN].dtype == rounding.NARROW:
                counter = rounding.entry_numbers(p) + rounding.key(group["seed"], int(state["step"]))
                new = rounding.round_states(recipe.analysis.state_kinds, new, counter)
            state[AGAIN].copy_(new[AGAIN])
        return bad


def _signed(value: Tensor, group: dict[str, Any]) -> Tensor:
    return -value if group["maximize"] else value
