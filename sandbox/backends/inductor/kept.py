"""Compiled steps kept on disk, by what they compute: another process need not even import Inductor, which takes seconds.

Of a graph Inductor makes a Python file that calls libraries, compiled from C++.  Kept is the text of that file without what
compiles, and where the libraries are: in the same cache, TORCHINDUCTOR_CACHE_DIR.  A step is found by its recorded graph
(`graph.recorded`), which takes milliseconds and follows every change of a block's code.  Not kept are steps on a GPU, steps of
matrices, and those whose file asks for more of Inductor than its kernels.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import getpass
import hashlib
import importlib.util
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from sandbox.backends.arena.places import Run
from sandbox.backends.tracing import graph
from sandbox.backends.tracing.cut import Reduction
from sandbox.recipe import Recipe
from sandbox.utils import imports


@dataclasses.dataclass(frozen=True)
class Made:
    """The compiled phases of a step.  reductions: of each phase, of its outputs.  guards: see `kernels`."""

    calls: list[Run]
    steps_only: bool
    reductions: list[list[Reduction]]
    guards: list[str] = dataclasses.field(default_factory=list)


def path_of(recipe: Recipe, signature: graph.Signature, **form: bool) -> Path | None:
    """Where a step is kept; None for one that is not.  form: what else its graphs depend on."""
    off = os.environ.get("TORCHINDUCTOR_FORCE_DISABLE_CACHES") == "1" or os.environ.get("TORCHINDUCTOR_FX_GRAPH_CACHE") == "0"
    if off or recipe.analysis.own_layout or signature.device != "cpu":
        return None
    try:
        recorded = graph.recorded(recipe, signature)
    except graph.NoGraph:
        return None
    constants = [(x.dtype, x.tolist()) for x in recorded.buffers()]
    place = dataclasses.replace(signature, structure=None), sorted(form.items()), torch.get_num_threads()
    said = repr((recorded.code, constants, place, _surroundings()))
    user = re.sub(r"\W", "_", getpass.getuser())
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or Path(tempfile.gettempdir(), f"torchinductor_{user}")
    return Path(cache, "apollo-sandbox", hashlib.sha256(said.encode()).hexdigest() + ".json")


@functools.cache
def _surroundings() -> tuple[Any, ...]:
    """What compiled code depends on besides its graph: torch, Python, the processor, and how this package compiles."""
    own = b"".join(path.read_bytes() for path in sorted((imports.PACKAGE / "backends").rglob("*.py")))
    processor = torch.backends.cpu.get_cpu_capability(), sorted(getattr(torch.cpu, "get_capabilities", dict)().items())
    return torch.__version__, sys.implementation.cache_tag, processor, hashlib.sha256(own).hexdigest()


def save(path: Path, made: Made) -> None:
    """Keeps a step, where it can be loaded again without Inductor."""
    try:
        parts = [_part(run) for run in made.calls]
    except (AttributeError, KeyError, OSError):  # another version of torch
        return
    if any(re.search(r"_inductor|async_compile|extern_kernels", text) for text, _ in parts):
        return
    kinds = [[dataclasses.astuple(kind) for kind in each] for each in made.reductions]
    entry = {"parts": parts, "steps_only": made.steps_only, "reductions": kinds}
    with contextlib.suppress(OSError):  # nobody needs it
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps(entry))
        os.replace(own, path)


def load(path: Path) -> Made:
    """A step as it was kept.  Raises OSError where it is not, and whatever its parts may raise."""
    entry = json.loads(path.read_text())
    kinds = [[Reduction(*kind) for kind in each] for each in entry["reductions"]]
    return Made([_loaded(*part) for part in entry["parts"]], entry["steps_only"], kinds)


def _part(run: Any) -> tuple[str, dict[str, str]]:
    """The text of what Inductor wrote for one graph, as far as a step needs it, and the libraries of its kernels by name."""
    names = run.__func__.__globals__
    libraries = {name: value.__self__.__file__ for name, value in names.items() if name.startswith("cpp_fused")}
    text = Path(names["__file__"]).read_text().partition("\ndef get_args")[0]
    text = re.sub(r"^cpp_fused\w* = async_compile\.cpp_pybinding\(.*?^'''\)$", "", text, flags=re.M | re.S)
    return re.sub(
        r"^(from torch\._inductor|inductor_ops|alloc_from_pool|\w*\s*async_compile).*\n", "", text, flags=re.M
    ), libraries


def _loaded(text: str, libraries: dict[str, str]) -> Run:
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
