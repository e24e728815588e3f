"""Interleaved timing, memory, and the table."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from tests.benchmarks.contenders import Make, contenders, parameters

BASE = "torch AdamW fused"


class Interleaved:
    """Every contender once a round, so that a noisy machine is noisy for all; medians, and ratios to one of them."""

    def __init__(
        self,
        shape: str | list[tuple[int, ...]],
        only: Callable[[str], bool] = lambda name: True,
        made: dict[str, Make] | None = None,
    ) -> None:
        """shape: a name, or the tensors' shapes.  made: the contenders, the first the unit of the ratios; default those of a shape."""
        makers = contenders(str(shape)) if made is None else made
        self.base = BASE if made is None else next(iter(made))
        self.first: dict[str, float] = {}
        self.times: dict[str, list[float]] = {}
        self.made: dict[str, Any] = {}
        self.gradients: dict[str, Any] = {}
        self.count = 0
        self.copies: list[float] = []
        self.source, self.target = (torch.zeros(2**26) for _ in range(2))
        for name, make in makers.items():
            if name != self.base and not only(name):
                continue
            params = parameters(shape)
            self.count = sum(p.numel() for p in params)
            start = time.perf_counter()
            self.gradients[name] = [(p, p.grad) for p in params]
            self.made[name] = make(params)
            self.made[name].step()
            self.first[name] = time.perf_counter() - start
            self.times[name] = []

    def round(self) -> None:
        """One step of each, and a copy of 256 MiB: what the memory gives, which on a shared machine changes by the minute."""
        start = time.perf_counter()
        self.target.copy_(self.source)
        self.copies.append(time.perf_counter() - start)
        for name, optimizer in self.made.items():
            self._restore(name)
            start = time.perf_counter()
            optimizer.step()
            self.times[name].append(time.perf_counter() - start)

    def close(self) -> None:
        """Frees all tensors: pytest-benchmark keeps what it has called, and the shapes together take more than 24 GB."""
        self.made.clear()
        self.gradients.clear()
        del self.source, self.target
        torch.compiler.reset()  # what has been compiled for one model keeps its parameters
        gc.collect()  # optimizers hold themselves, and tests look for garbage rarely

    def bandwidth(self) -> float:
        """Bytes a second, read and written, of the median copy."""
        return 2 * self.source.numel() * self.source.element_size() / statistics.median(self.copies)

    def _restore(self, name: str) -> None:
        """Gradients for those that consume them (heavyball does)."""
        for p, g in self.gradients[name]:
            if p.grad is None:
                p.grad = g

    def rows(self) -> list[dict[str, Any]]:
        """Name, median ms, ratio, seconds of the first step, state elements per parameter."""
        base = statistics.median(self.times[self.base])
        rows = []
        for name, seconds in self.times.items():
            self._restore(name)
            median = statistics.median(seconds)
            rows.append(
                {
                    "name": name,
                    "ms": 1000 * median,
                    "ratio": median / base,
                    "first_step_s": self.first[name],
                    "state_bytes_a_parameter": state_bytes(self.made[name]) / self.count,
                    "buffer_bytes_a_parameter": buffer_bytes(self.made[name]) / self.count,
                    "peak_extra_bytes_a_parameter": peak_extra_bytes(self.made[name].step) / self.count,
                }
            )
        return rows


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [t for v in tree.values() for t in _tensors(v)]
    return [t for v in tree for t in _tensors(v)] if isinstance(tree, list | tuple) else []


def state_bytes(optimizer: Any) -> int:
    """Bytes of `optimizer.state`."""
    state = getattr(getattr(optimizer, "optimizer", optimizer), "state", {})
    return sum(t.numel() * t.element_size() for entry in state.values() for t in _tensors(dict(entry)))


def buffer_bytes(optimizer: Any) -> int:
    """Bytes that a plan of the compiled backend keeps beside the state: gradients and steps of small tensors."""
    total = 0
    for kept in getattr(optimizer, "_cohorts", {}).values():
        for cohort in kept.each:
            for small in getattr(cohort.cache, "small", []):
                kept = [small.g, *([] if cohort.cache.flat else [small.theta])]
                total += sum(t.numel() * t.element_size() for t in kept)
    return total


def peak_extra_bytes(step: Callable[[], None]) -> int:
    """The most that a step allocates on top of what there was, by torch's own allocator events."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    head = f"{'':32} {'ms':>9} {'ratio':>7} {'first s':>8} {'state':>6} {'buffers':>8} {'peak':>6}   (bytes a parameter)"
    lines = [
        f"{r['name']:32} {r['ms']:9.2f} {r['ratio']:7.2f} {r['first_step_s']:8.2f} {r['state_bytes_a_parameter']:6.1f} "
        f"{r['buffer_bytes_a_parameter']:8.1f} {r['peak_extra_bytes_a_parameter']:6.1f}"
        for r in rows
    ]
    return "\n".join([head, *lines])
