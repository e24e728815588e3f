"""`Watch`: probes on an optimizer, whatever its backend, without changing its trajectory.

At the steps that it samples it computes the step once more, eagerly, from the same parameters, gradients and state, and hands
the result to the probes; the backend's own step is not involved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sandbox.backends import Cohort, Step, reference
from sandbox.blocks import Flow
from sandbox.probes import measures
from sandbox.probes import view as views
from sandbox.probes.measures import Probe
from sandbox.probes.view import View
from sandbox.recipe import Recipe
from sandbox.utils import suggest

if TYPE_CHECKING:
    from sandbox.utils.frames import Frame

EVERYTHING = "(all)"  # the row of all tensors together


def find(probes: Iterable[str | Probe]) -> dict[str, Probe]:
    """Returns probes by name.  Raises ValueError for an unknown or double name, TypeError for what cannot be called."""
    by_name: dict[str, Probe] = {}
    for probe in [probes] if isinstance(probes, str) or callable(probes) else probes:
        if isinstance(probe, str):
            if probe not in measures.ALL:
                raise ValueError(suggest.unknown("probe", probe, measures.ALL))
            probe = measures.ALL[probe]
        if not callable(probe):
            raise TypeError(f"a probe is a function of a View, or the name of one, got {probe!r}")
        name = getattr(probe, "__name__", type(probe).__name__)
        if name in by_name:
            raise ValueError(f"two probes are called {name!r}")
        by_name[name] = probe
    return by_name


def need(probes: dict[str, Probe], what: str) -> bool:
    """Whether some probe needs "truth" or "D_old"."""
    return any(what in getattr(probe, "needs", ()) for probe in probes.values())


class Watch:
    """Measures every `every`-th step:  `optimizer.watch = Watch(["floor_occupancy"], every=10)`.

    probes: names of `sandbox.probes.ALL` or functions of a `View`; default all.
    every: k ≥ 1; steps k, 2k, … are sampled.  at: these steps, counted from 1, in their place.
    truth: {name: parameter} -> {name: Hessian diagonal}, called at θ before a sampled step (see `sandbox.curvature`); without
        it probes that need a truth give nothing.
    tensors: also a row per tensor, and not only for all of them together.
    `rows` holds {"step", "tensor", "probe", "value"}, `frame` the same as a DataFrame.
    """

    def __init__(
        self,
        probes: Iterable[str | Probe] = tuple(measures.ALL),
        *,
        every: int = 1,
        at: Collection[int] | None = None,
        truth: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
        tensors: bool = True,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a whole number of at least 1, got {every!r}")
        self.probes, self.every, self.truth, self.tensors = find(probes), every, truth, tensors
        self.at = at
        self.steps = 0
        self.rows: list[dict[str, Any]] = []
        self._before: dict[str, tuple[Tensor, Any]] = {}  # D and η of the step before, by tensor
        self._needs_before = need(self.probes, "D_old")

    @torch.no_grad()
    def observe(self, planned: Sequence[tuple[list[str], Cohort, Step]]) -> None:
        """Called by the optimizer before each step, with what the step will take; names of each cohort's tensors first."""
        self.steps += 1
        sampled = self._samples(self.steps)
        if not sampled and not (self._needs_before and self._samples(self.steps + 1)):
            return
        seen: dict[str, View] = {}
        for names, cohort, step in planned:
            seen |= dict(zip(names, replay(cohort, step), strict=True))
        if sampled and seen:
            params = {n: p for names, cohort, _ in planned for n, p in zip(names, cohort.params, strict=True)}
            self._measure({name: self._complete(name, v) for name, v in seen.items()}, params)
        if self._needs_before:
            self._before = {name: (v.D, v.lr) for name, v in seen.items()}

    def _samples(self, step: int) -> bool:
        return step % self.every == 0 if self.at is None else step in self.at

    def _complete(self, name: str, v: View) -> View:
        D_old, lr = self._before.get(name, (None, None))
        return dataclasses.replace(v, D_old=D_old, lr_before=lr)

    def _measure(self, seen: dict[str, View], params: dict[str, Tensor]) -> None:
        if self.truth is not None and need(self.probes, "truth"):
            with torch.enable_grad():
                truth = self.truth({name: p.detach() for name, p in params.items()})
            lacking = sorted(set(seen) - set(truth))
            if lacking:
                raise ValueError(
                    f"truth gave no diagonal for {', '.join(lacking)}; it gave {', '.join(sorted(truth)) or 'none'}"
                )
            seen = {name: dataclasses.replace(v, truth=truth[name].detach().reshape(-1)) for name, v in seen.items()}
        together = {EVERYTHING: _join(list(seen.values()))} if len(seen) != 1 else {EVERYTHING: next(iter(seen.values()))}
        for tensor, v in {**together, **(seen if self.tensors else {})}.items():
            for name, probe in self.probes.items():
                value = probe(v)
                if value is not None:
                    self.rows.append({"step": self.steps, "tensor": tensor, "probe": name, "value": float(value)})

    @property
    def frame(self) -> Frame:
        """Returns what was measured: columns step, tensor, probe, value."""
        import polars as pl

        from sandbox.utils.frames import Frame

        schema: dict[str, Any] = {"step": pl.Int64, "tensor": pl.String, "probe": pl.String, "value": pl.Float64}
        return Frame(self.rows, schema=schema)


def _join(seen: list[View]) -> View:
    """Returns all tensors together, in the first one's dtype and on its device."""
    like = seen[0].theta
    moved = [dataclasses.replace(v, **{n: _like(getattr(v, n), like) for n in (*views._VECTORS, "residual")}) for v in seen]
    return views.join(moved)


def _like(value: Any, like: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(like.device, like.dtype if value.is_floating_point() else None)


def replay(cohort: Cohort, step: Step) -> list[View]:
    """Returns the views of a step that the cohort is about to make, one per tensor; nothing changes."""
    each: list[View] = []

    def observe(members: list[int], recipe: Recipe, x: Flow) -> None:
        each.extend(views.split(views.from_flow(recipe, x), [cohort.params[i].numel() for i in members]))

    for _, run in reference.runs(cohort, step, reference.leaves_of(cohort, step), observe=observe):
        run()
    return each
