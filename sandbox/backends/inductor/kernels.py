"""A graph compiled by Inductor, and the compiled graphs of the process."""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from sandbox.backends.arena.places import Run
from sandbox.backends.inductor import headers, instructions, kept
from sandbox.backends.inductor.kept import Made
from sandbox.backends.tracing import graph, selfcheck
from sandbox.backends.tracing.cut import CHECK, Phase, checking, cut
from sandbox.backends.tracing.layout import WIDTH
from sandbox.recipe import Recipe
from sandbox.utils import suggest

# Compiled steps by what they depend on, for the process.  `compilations` counts them, for tests and the curious.
_COMPILED: dict[Any, Kernel] = {}
_PHASED: dict[Any, PhasedKernel] = {}
compilations: list[graph.Signature] = []


class NoEntry(RuntimeError):
    """Inductor's entry that is used here is not public: another version of torch may not have it in this form."""


class Kernel:
    """The compiled graph of one signature.

    Inductor gets the graph with the symbolic sizes of its trace, without Dynamo, whose checks cost more than a small step, and
    without AOTAutograd, whose wrappers cost 20 µs a call where the step comes after a backward pass: there is no gradient.
    What Inductor takes for granted about sizes is then checked by nobody: `guards` lists it (unless Inductor's cache knew the
    graph).  It compares a size with 4096, which decides whether a float32 sum is added up in chunks: right for every size.
    It may count indices in 31 bits: Dynamo compiles for longer tensors, and for a `mode`.
    """

    def __init__(self, recipe: Recipe, signature: graph.Signature, *, step_only: bool, mode: str | None) -> None:
        self.recipe, self.signature, self.step_only, self.mode = recipe, signature, step_only, mode
        self._dynamo: Callable[..., None] | None = None
        self._direct: Run | None = None
        self.guards: list[str] = []
        if mode is None:
            try:
                made = _made(recipe, signature, step_only=step_only, phased=False)
                (self._direct,), self.steps_only, self.guards = made.calls, made.steps_only, made.guards
                return
            except NoEntry as error:
                warnings.warn(
                    f"{error}; steps go through torch.compile, which costs some microseconds more a call", stacklevel=2
                )
        _, self.steps_only = _traced(recipe, signature, step_only=step_only)

    def run_for(self, theta: Tensor) -> Run:
        """What makes a step on a leaf as long as theta; it takes the graph's inputs as a list, and empties the list."""
        if self._direct and theta.numel() < 2**31:
            return self._direct
        through = self._through_dynamo()
        return lambda inputs: through(*inputs)

    def _through_dynamo(self) -> Callable[..., None]:
        if self._dynamo is None:
            _lower()
            traced, _ = _traced(self.recipe, self.signature, step_only=self.step_only)
            self._dynamo = torch.compile(traced, fullgraph=True, dynamic=False, mode=self.mode)
            inputs = graph.example(self.recipe, self.signature, graph.Sizes().times(_scale(self.signature)))
            for tensor in inputs[1:]:
                _mark_dynamic(tensor, self.signature)
            for tensor in inputs:
                # CUDA graphs take tensors that are written in place only if they stay where they are, as ours do
                torch._dynamo.mark_static_address(tensor, guard=False)
            with _settings(), instructions.of_torch(), without_gc():
                self._dynamo(*inputs)
        return self._dynamo


def _made(recipe: Recipe, signature: graph.Signature, *, step_only: bool, phased: bool) -> Made:
    """The compiled phases of a step: kept ones, if they pass the check of a new graph.  phased: cut at its sums."""
    path = kept.path_of(recipe, signature, step_only=step_only, phased=phased)
    if path is not None and path.exists():
        try:
            made = kept.load(path)
            selfcheck.check(recipe, signature, functools.partial(_in_a_row, made), made.steps_only)
            return made
        except Exception:  # whatever is wrong with it, it can be made again
            path.unlink(missing_ok=True)
    with without_gc(), headers.ahead() if signature.device == "cpu" else contextlib.nullcontext():
        traced, steps_only = _traced(recipe, signature, step_only=step_only, marked=phased)
        # cut, it checks the gradient too
        parts = checking(cut(traced), signature.place_of_theta + 1) if phased else [Phase(traced, [])]
        done = [_compile(part.graph) for part in parts]
    guards = [guard for _, each in done for guard in each]
    made = Made([run for run, _ in done], steps_only, [part.reductions for part in parts], guards)
    if path is not None:
        kept.save(path, made)
    return made


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


def _in_a_row(made: Made, *inputs: Tensor) -> None:
    """All phases, where this process has all that they sum."""
    sums: list[Tensor] = []
    for call, kinds in zip(made.calls, made.reductions, strict=True):
        found = call([*inputs, *sums])
        sums += [x for x, kind in zip(found, kinds, strict=True) if kind.over != CHECK]


def _traced(recipe: Recipe, signature: graph.Signature, *, step_only: bool, marked: bool = False) -> tuple[GraphModule, bool]:
    """The graph, and whether it writes the step instead of θ (where asked for and possible)."""
    traced = graph.trace(recipe, signature, opaque=True, scale=_scale(signature), marked=marked)
    steps_only = step_only and graph.write_step_only(traced)
    selfcheck.check(recipe, signature, traced, steps_only)
    return traced, steps_only


def _compile(traced: GraphModule) -> tuple[Run, list[str]]:
    """The graph compiled for inference, with the sizes of its trace, and what was taken for granted about them.

    Raises NoEntry.
    """
    try:
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.virtualized import V

        _lower()
        traced.shape_env = None  # Inductor takes it from the sizes; as it is, it cannot be pickled for the cache
        sizes = [n.meta["val"] for n in traced.graph.nodes if n.op == "placeholder"]
        fake = sizes[0].fake_mode
        tracing = torch._guards.tracing(torch._guards.TracingContext(fake))
        with tracing, V.set_fake_mode(fake), _settings(), instructions.of_torch():
            run: Any = compile_fx_inner(traced, sizes, is_inference=True)
    except Exception as error:
        raise NoEntry(f"torch {torch.__version__}: Inductor's direct entry failed ({suggest.short(error)})") from error
    # on a CPU there is nothing to tune at the first calls, which Inductor's wrapper looks after
    run = run.current_callable if sizes[0].device.type == "cpu" else run
    return run, [str(guard.expr) for guard in fake.shape_env.guards]


@functools.cache
def _lower() -> None:
    """Inductor computes `places` where they are read, and writes them nowhere."""
    from torch._inductor.ir import Pointwise
    from torch._inductor.lowering import register_lowering
    from torch._inductor.virtualized import ops
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    def places(like: Any, column: Any) -> Any:
        size, in_row = list(like.get_size()), column.make_loader()

        def at(index: Any) -> Any:
            if len(size) > 1:
                return ops.index_expr(index[0] * size[1] + index[1], torch.int32)
            # a load of sixteen neighbours is faster than their indices one by one, as Inductor makes them on a CPU
            place = in_row([0, ModularIndexing(index[0], 1, WIDTH)])
            return ops.add(place, ops.index_expr(FloorDiv(index[0], WIDTH) * WIDTH, torch.int32))

        return Pointwise.create(device=like.get_device(), dtype=torch.int32, inner_fn=at, ranges=size)

    register_lowering(torch.ops.apollo_sandbox.places.default, type_promotion_kind=None)(places)


def kernel_of(recipe: Recipe, signature: graph.Signature, *, step_only: bool, mode: str | None) -> Kernel:
    """The kernel of a signature, compiled at the first call in the process."""
    # Inductor writes the number of threads into its code
    key = signature, step_only, mode, torch.get_num_threads()
    with graph.LOCK:
        if key not in _COMPILED:
            compilations.append(signature)
            _COMPILED[key] = Kernel(recipe, signature, step_only=step_only, mode=mode)
        return _COMPILED[key]


class PhasedKernel:
    """The graph of one signature cut at its scope sums, each phase compiled: for parts of tensors."""

    def __init__(self, recipe: Recipe, signature: graph.Signature, *, step_only: bool) -> None:
        made = _made(recipe, signature, step_only=step_only, phased=True)
        self.calls, self.steps_only, self.reductions = made.calls, made.steps_only, made.reductions

    def run_for(self, theta: Tensor) -> Any:
        """What makes a step on a leaf, phase by phase (`PhasedRun`).  Raises ValueError for a leaf of more than 2³¹ entries."""
        if theta.numel() >= 2**31:
            raise ValueError(f"a part of a tensor may have at most 2³¹ - 1 entries, got {theta.numel():,}")
        return _PhasedRun(self)


class _PhasedRun:
    """See `sandbox.backends.arena.phased.PhasedRun`."""

    def __init__(self, kernel: PhasedKernel) -> None:
        self.calls, self.reductions = kernel.calls, kernel.reductions
        self.inputs: list[Tensor] = []

    def begin(self, inputs: Sequence[Tensor]) -> None:
        """Takes the inputs of a step."""
        self.inputs = list(inputs)

    def phase(self, number: int, sums: Sequence[Tensor]) -> Sequence[Tensor]:
        """One phase, with the sums of those before it; the last one writes."""
        return self.calls[number]([*self.inputs, *sums])


def phased_of(recipe: Recipe, signature: graph.Signature, *, step_only: bool) -> PhasedKernel:
    """The phases of a signature, compiled at the first call in the process."""
    key = signature, step_only, torch.get_num_threads()
    with graph.LOCK:
        if key not in _PHASED:
            compilations.append(signature)
            _PHASED[key] = PhasedKernel(recipe, signature, step_only=step_only)
        return _PHASED[key]


def _scale(signature: graph.Signature) -> int:
    """Inductor parallelises by the sizes that it first sees: large ones."""
    return 512 if signature.kind == "arena" else 1024


def _settings() -> Any:
    # d is computed twice rather than stored between the two passes: a word of memory traffic a parameter costs more.
    # Sums over fewer than eight entries would be written out, one inside the other: twenty minutes for three pairs of RES.
    # The 19 sums of a history of ten pairs are taken in one pass over it, not in two
    return torch._inductor.config.patch(
        {
            "realize_reads_threshold": 64,
            "realize_opcount_threshold": 512,
            "realize_acc_reads_threshold": 64,
            "unroll_reductions_threshold": 1,
            "cpp.max_horizontal_fusion_size": 64,
        }
    )


def _mark_dynamic(tensor: Tensor, signature: graph.Signature) -> None:
    if tensor.ndim and len(tensor) > 1:
        torch._dynamo.mark_dynamic(tensor, 0)
    if signature.kind != "arena" and tensor.ndim == 2 and tensor.shape[1] > 1:
        torch._dynamo.mark_dynamic(tensor, 1)
