"""A step's graph compiled by Inductor, and the compiled graphs of the process."""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sandbox.backends.arena.leaves import BoundKernel
from sandbox.backends.inductor import disk_cache, private
from sandbox.backends.inductor.disk_cache import CompiledStep
from sandbox.backends.tracing import graph, selfcheck
from sandbox.backends.tracing.cut import CHECK, Phase, checking, cut
from sandbox.recipe import Recipe
from sandbox.utils import suggest

# Compiled steps by what they depend on, for the process.  `compilations` counts them, for tests and the curious.
_COMPILED: dict[Any, Kernel] = {}
compilations: list[graph.Signature] = []


class Kernel:
    """The compiled graph of one signature, cut into phases where ranks must add up its sums (`phased`).

    Inductor gets the graph with the symbolic sizes of its trace, without Dynamo, whose checks cost more than a small step, and
    without AOTAutograd, whose wrappers cost 20 µs per call where the step comes after a backward pass: there is no gradient.
    What Inductor takes for granted about sizes is then checked by nobody: `guards` lists it (unless Inductor's cache knew the
    graph).  It compares a size with 4096, which decides whether a float32 sum is added up in chunks: right for every size.
    It may count indices in 31 bits: tensors that are longer, and a `mode`, go through `torch.compile`; so does every step
    where torch's private names are unavailable, and runs uncompiled where that fails too.
    """

    def __init__(self, recipe: Recipe, signature: graph.Signature, *, step_only: bool, phased: bool, mode: str | None) -> None:
        self.recipe, self.signature, self.step_only, self.phased, self.mode = recipe, signature, step_only, phased, mode
        self._direct: CompiledStep | None = None
        self._why = ""  # the direct entry is not used
        if mode is None:
            try:
                self._direct = self._compile_directly()
            except private.Unavailable as error:
                self._why = str(error)
        step = self._direct or self._general
        self.steps_only, self.reductions, self.guards = step.steps_only, step.reductions, step.guards

    def bind(self, theta: Tensor) -> Any:
        """Returns what makes a step on a leaf as long as theta from the graph's inputs, a list that it empties.

        Of a kernel in phases: a `BoundPhases`.
        """
        step = self._direct if self._direct and theta.numel() < 2**31 else self._general
        return BoundPhases(step) if self.phased else step.calls[0]

    def _compile_directly(self) -> CompiledStep:
        """Returns the step from the disk cache, if it passes the check of a new graph; else compiles it and stores it."""
        path = disk_cache.path_of(self.recipe, self.signature, step_only=self.step_only, phased=self.phased)
        if path is not None and path.exists():
            try:
                step = disk_cache.load(path)
                selfcheck.check(self.recipe, self.signature, functools.partial(_run_in_a_row, step), step.steps_only)
                return step
            except Exception:  # whatever is wrong with it, it can be made again
                path.unlink(missing_ok=True)
        with without_gc(), private.header_ahead() if self.signature.device == "cpu" else contextlib.nullcontext():
            phases, steps_only = self._trace(private.decompositions())
            compiled = [private.compile_graph(phase.graph) for phase in phases]
        guards = [guard for _, those in compiled for guard in those]
        step = CompiledStep([call for call, _ in compiled], steps_only, [phase.reductions for phase in phases], guards)
        if path is not None:
            disk_cache.save(path, step)
        return step

    @functools.cached_property
    def _general(self) -> CompiledStep:
        """The step through `torch.compile`, with this package's settings where they are available; warns if it must."""
        inputs = graph.example(self.recipe, self.signature, graph.Sizes().times(_scale(self.signature)))
        with without_gc(), contextlib.ExitStack() as stack:
            table, marks = None, None
            with contextlib.suppress(private.Unavailable):
                table, marks = private.decompositions(), private.adjust(stack)
            phases, steps_only = self._trace(table)
            calls: list[BoundKernel] = []
            try:
                for phase in phases:
                    calls.append(self._compile_generally(phase, inputs, marks))
                    sums = calls[-1]([*inputs])
                    inputs += [x for x, kind in zip(sums or (), phase.reductions, strict=True) if kind.over != CHECK]
                how = "go through torch.compile, which costs some microseconds more per call"
            except Exception as error:
                if self.mode is not None:
                    raise
                calls = [functools.partial(_call, phase.graph) for phase in phases]
                how = f"run uncompiled, since torch.compile fails ({suggest.short(error)})"
                self._why = self._why or "no compiler"
        if self._why and not (private.is_off() and "uncompiled" not in how):
            warnings.warn(f"{self._why}; steps {how}", stacklevel=2)
        return CompiledStep(calls, steps_only, [phase.reductions for phase in phases])

    def _compile_generally(self, phase: Phase, inputs: Sequence[Tensor], marks: Any) -> BoundKernel:
        options = {"mode": self.mode} if self.mode is not None or marks else {"options": private.SETTINGS}
        if marks:
            mark_dynamic, mark_static_address = marks
            for place, tensor in enumerate(inputs):
                for axis in self._free_axes(tensor) if place else ():
                    mark_dynamic(tensor, axis)
                # CUDA graphs take tensors that are written in place only if they stay where they are, as ours do
                mark_static_address(tensor, guard=False)
        return functools.partial(_call, torch.compile(phase.graph, fullgraph=True, dynamic=not marks, **options))

    def _free_axes(self, tensor: Tensor) -> list[int]:
        """The axes whose sizes differ from model to model."""
        most = 2 if self.signature.kind != "arena" and tensor.ndim == 2 else 1
        return [axis for axis in range(min(most, tensor.ndim)) if tensor.shape[axis] > 1]

    def _trace(self, table: Mapping[Any, Any] | None) -> tuple[list[Phase], bool]:
        """Returns the graph's phases, and whether it writes the step instead of θ (where asked for and possible)."""
        scale = _scale(self.signature)
        traced = graph.trace(self.recipe, self.signature, opaque=True, scale=scale, marked=self.phased, decompositions=table)
        steps_only = self.step_only and graph.write_step_only(traced)
        selfcheck.check(self.recipe, self.signature, traced, steps_only)
        # cut, it checks the gradient too
        return checking(cut(traced), self.signature.place_of_theta + 1) if self.phased else [Phase(traced, [])], steps_only


def _call(function: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
    return function(*inputs)


def _run_in_a_row(step: CompiledStep, *inputs: Tensor) -> None:
    """Runs all phases, where this process has all that they sum."""
    sums: list[Tensor] = []
    for call, kinds in zip(step.calls, step.reductions, strict=True):
        outputs = call([*inputs, *sums])
        sums += [x for x, kind in zip(outputs, kinds, strict=True) if kind.over != CHECK]


def _scale(signature: graph.Signature) -> int:
    """Inductor parallelises by the sizes that it first sees: large ones."""
    return 512 if signature.kind == "arena" else 1024


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Turns off garbage collection inside: among the millions of objects of a compilation it takes a tenth of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class BoundPhases:
    """A compiled step on one leaf, phase by phase; see `sandbox.backends.arena.phases.PhasedKernel`."""

    def __init__(self, step: CompiledStep) -> None:
        self.calls, self.reductions = step.calls, step.reductions
        self.inputs: list[Tensor] = []

    def begin(self, inputs: Sequence[Tensor]) -> None:
        """Takes the inputs of a step."""
        self.inputs = list(inputs)

    def phase(self, number: int, sums: Sequence[Tensor]) -> Sequence[Tensor]:
        """Runs one phase, with the sums of those before it; the last one writes."""
        return self.calls[number]([*self.inputs, *sums])


def kernel_of(recipe: Recipe, signature: graph.Signature, *, step_only: bool, phased: bool, mode: str | None) -> Kernel:
    """Returns the kernel of a signature, compiled at the first call in the process."""
    # Inductor writes the number of threads into its code
    key = signature, step_only, phased, mode, torch.get_num_threads(), private.is_off()
    with graph.LOCK:
        if key not in _COMPILED:
            compilations.append(signature)
            _COMPILED[key] = Kernel(recipe, signature, step_only=step_only, phased=phased, mode=mode)
        return _COMPILED[key]
