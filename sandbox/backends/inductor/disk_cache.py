"""Compiled steps on disk, by what they compute: another process need not even import Inductor, which takes seconds.

An entry holds the text of the Python file that Inductor wrote for each graph, without what compiles, and the paths of the
libraries that it calls; these lie in the same folder, TORCHINDUCTOR_CACHE_DIR.  An entry is named by a hash of the recorded
graph (`graph.recorded`), which takes milliseconds to make and follows every change of a block's code.  Steps on a GPU, steps of
matrices, and those whose file asks for more of Inductor than its kernels are not stored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import getpass
import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from sandbox.backends.arena.leaves import BoundKernel
from sandbox.backends.inductor import private
from sandbox.backends.tracing import graph
from sandbox.backends.tracing.cut import Reduction
from sandbox.recipe import Recipe
from sandbox.utils import imports


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """The compiled phases of a step.  reductions: of each phase, of its outputs.  guards: see `kernels`."""

    calls: list[BoundKernel]
    steps_only: bool
    reductions: list[list[Reduction]]
    guards: list[str] = dataclasses.field(default_factory=list)


def path_of(recipe: Recipe, signature: graph.Signature, **form: bool) -> Path | None:
    """Returns the path of a step's entry, None for a step that is not stored.  form: what else its graphs depend on."""
    off = os.environ.get("TORCHINDUCTOR_FORCE_DISABLE_CACHES") == "1" or os.environ.get("TORCHINDUCTOR_FX_GRAPH_CACHE") == "0"
    if off or private.is_off() or recipe.analysis.own_layout or signature.device != "cpu":
        return None
    try:
        recorded = graph.recorded(recipe, signature)
    except graph.NoGraph:
        return None
    constants = [(x.dtype, x.tolist()) for x in recorded.buffers()]
    place = dataclasses.replace(signature, structure=None), sorted(form.items()), torch.get_num_threads()
    text = repr((recorded.code, constants, place, _environment()))
    user = re.sub(r"\W", "_", getpass.getuser())
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or Path(tempfile.gettempdir(), f"torchinductor_{user}")
    return Path(cache, "apollo-sandbox", hashlib.sha256(text.encode()).hexdigest() + ".json")


@functools.cache
def _environment() -> tuple[Any, ...]:
    """What compiled code depends on besides its graph: torch, Python, the processor, and how this package compiles."""
    sources = b"".join(path.read_bytes() for path in sorted((imports.PACKAGE / "backends").rglob("*.py")))
    processor = torch.backends.cpu.get_cpu_capability(), sorted(getattr(torch.cpu, "get_capabilities", dict)().items())
    return torch.__version__, sys.implementation.cache_tag, processor, hashlib.sha256(sources).hexdigest()


def save(path: Path, step: CompiledStep) -> None:
    """Stores a step, where it can be loaded again without Inductor."""
    with contextlib.suppress(OSError, private.Unavailable):  # nobody needs it
        parts = [private.source_of(call) for call in step.calls]
        kinds = [[dataclasses.astuple(kind) for kind in phase] for phase in step.reductions]
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({"parts": parts, "steps_only": step.steps_only, "reductions": kinds}))
        os.replace(unfinished, path)


def load(path: Path) -> CompiledStep:
    """Reads an entry.  Raises OSError where there is none, and whatever a damaged one may raise."""
    entry = json.loads(path.read_text())
    kinds = [[Reduction(*kind) for kind in phase] for phase in entry["reductions"]]
    return CompiledStep([private.load_source(*part) for part in entry["parts"]], entry["steps_only"], kinds)
