"""Everything that this package takes from Inductor and Dynamo beyond `torch.compile`; no other file touches their names.

Steps do not depend on it.  Whatever fails in here raises `Unavailable`, and the step is compiled by plain `torch.compile`
(`kernels.Kernel`).  With the environment variable APOLLO_SANDBOX_INDUCTOR=public none of it is tried.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from sandbox.backends.tracing.layout import WIDTH
from sandbox.utils import suggest

SWITCH, PUBLIC = "APOLLO_SANDBOX_INDUCTOR", "public"

# d is computed twice rather than stored between the two passes: a word of memory traffic per parameter costs more.
# Sums over fewer than eight entries would be written out, one inside the other: twenty minutes for three pairs of RES.
# The 19 sums of a history of ten pairs are taken in one pass over it, not in two.
SETTINGS: dict[str, Any] = {
    "realize_reads_threshold": 64,
    "realize_opcount_threshold": 512,
    "realize_acc_reads_threshold": 64,
    "unroll_reductions_threshold": 1,
    "cpp.max_horizontal_fusion_size": 64,
}


class Unavailable(RuntimeError):
    """This version of torch lacks a private name, or has it in another form; or the user has turned all of them off."""


def is_off() -> bool:
    """Whether the user wants `torch.compile` as it is documented, and nothing else."""
    return os.environ.get(SWITCH) == PUBLIC


@contextlib.contextmanager
def _internals() -> Iterator[None]:
    """Encloses every use of a private name: any error inside becomes `Unavailable`."""
    if is_off():
        raise Unavailable(f"{SWITCH}={PUBLIC}")
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:
        raise Unavailable(f"torch {torch.__version__}: Inductor's direct entry failed ({suggest.short(error)})") from error


# -- compiling ---------------------------------------------------------------------------------------------------------


def decompositions() -> Mapping[Any, Any]:
    """Returns how Inductor wants operators decomposed before it gets them."""
    with _internals():
        from torch._inductor.decomposition import select_decomp_table

        return select_decomp_table()


def compile_graph(traced: GraphModule) -> tuple[Callable[[list[Tensor]], Any], list[str]]:
    """Compiles a graph for inference, with the sizes of its trace; returns also what was taken for granted about them."""
    with _internals(), contextlib.ExitStack() as stack:
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.virtualized import V

        adjust(stack)
        traced.shape_env = None  # Inductor takes it from the sizes; as it is, it cannot be pickled for the cache
        sizes = [n.meta["val"] for n in traced.graph.nodes if n.op == "placeholder"]
        fake = sizes[0].fake_mode
        with torch._guards.tracing(torch._guards.TracingContext(fake)), V.set_fake_mode(fake):
            run: Any = compile_fx_inner(traced, sizes, is_inference=True)
        # on a CPU there is nothing to tune at the first calls, which Inductor's wrapper looks after
        run = run.current_callable if sizes[0].device.type == "cpu" else run
        return run, [str(guard.expr) for guard in fake.shape_env.guards]


def compile_for(traced: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compiles a graph for tensors of exactly the shapes of `inputs`."""
    with _internals(), _instructions():
        return torch._inductor.standalone_compile(traced, inputs, dynamic_shapes="from_example_inputs")


def adjust(stack: contextlib.ExitStack) -> tuple[Callable[..., None], Callable[..., None]]:
    """Sets Inductor up for steps until the stack is closed; returns Dynamo's `mark_dynamic` and `mark_static_address`."""
    with _internals():
        _lower_places()
        stack.enter_context(_instructions())
        stack.enter_context(torch._inductor.config.patch(SETTINGS))
        return torch._dynamo.mark_dynamic, torch._dynamo.mark_static_address


@functools.cache
def _lower_places() -> None:
    """Makes Inductor compute the operator `places` where it is read, and write it nowhere."""
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


# -- the vector instructions of this processor -------------------------------------------------------------------------


@contextlib.contextmanager
def _instructions() -> Iterator[None]:
    """Inside, Inductor takes the instructions of torch's own kernels without trying them.

    In each new cache Inductor compiles and loads ten small programs, one after another, to see which instructions processor
    and compiler have: 17 of the 27 seconds that a first step took on two busy cores.  A compiler that knows the C++ of
    Inductor's headers knows these.  Instructions that only products of matrices of small numbers use (VNNI, AMX) are left out.
    """
    from torch._inductor import cpu_vec_isa

    inductor: Any = cpu_vec_isa
    kinds = {"_is_avx512_supported": cpu_vec_isa.VecAVX512, "_is_avx2_supported": cpu_vec_isa.VecAVX2}
    supported = [_assumed(kind) for name, kind in kinds.items() if getattr(torch.cpu, name, lambda: False)()]
    original = inductor.valid_vec_isa_list
    if supported:
        inductor.valid_vec_isa_list = lambda: supported
    try:
        yield
    finally:
        inductor.valid_vec_isa_list = original


@functools.cache  # one object for each: by it Inductor knows the headers that it has compiled
def _assumed(kind: Any) -> Any:
    """Returns an instruction set that says it is there."""
    return type(kind.__name__, (kind,), {"__bool__": lambda self: True, "__hash__": kind.__hash__})()


# -- the header of C++ kernels -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def header_ahead() -> Iterator[None]:
    """Compiles the header of Inductor's C++ kernels in a thread, and waits for it at the end; errors there do no harm.

    Left to itself, Inductor compiles it once for each user of a machine when the first kernel has been generated: some
    seconds, in which the graph can be traced.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(Unavailable), _internals():
            # imported here and not by the thread: of modules that import each other, two threads may see unfinished ones
            from torch._inductor import codecache

            stack.enter_context(_instructions())
            thread = threading.Thread(target=_compile_header, args=(codecache,), name="header of kernels")
            thread.start()
            stack.callback(thread.join)
        yield


def _compile_header(codecache: Any) -> None:
    with contextlib.suppress(Unavailable), _internals():
        # compiles the header, writes the source, and returns a function that would compile the source
        codecache.CppPythonBindingsCodeCache.load_async("// no kernel")


# -- the Python file that Inductor writes for a graph ------------------------------------------------------------------


def source_of(run: Any) -> tuple[str, dict[str, str]]:
    """Returns the text of what Inductor wrote for one graph, without what compiles, and the library of each kernel by name.

    Raises Unavailable also for a file that asks for more of Inductor than its kernels.
    """
    with _internals():
        names = run.__func__.__globals__
        libraries = {name: value.__self__.__file__ for name, value in names.items() if name.startswith("cpp_fused")}
        text = Path(names["__file__"]).read_text().partition("\ndef get_args")[0]
        text = re.sub(r"^cpp_fused\w* = async_compile\.cpp_pybinding\(.*?^'''\)$", "", text, flags=re.M | re.S)
        imports = r"^(from torch\._inductor|inductor_ops|alloc_from_pool|\w*\s*async_compile).*\n"
        text = re.sub(imports, "", text, flags=re.M)
        if re.search(r"_inductor|async_compile|extern_kernels", text):
            raise Unavailable("a file that needs Inductor")
        return text, libraries


def load_source(text: str, libraries: Mapping[str, str]) -> Callable[[list[Tensor]], Any]:
    """Returns the function of a text from `source_of`, without importing Inductor."""
    with _internals():
        address = torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
        os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(address)
        names: dict[str, Any] = {"__name__": __name__}
        for name, path in libraries.items():
            spec = importlib.util.spec_from_file_location("kernel", path)
            if spec is None or spec.loader is None:
                raise ImportError(f"{path} is no library")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            names[name] = module.kernel
        exec(text, names)
        return names["call"]
