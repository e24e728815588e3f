"""Writes the pages of the site that follow from the packages: reference, gallery, notebooks and the picture of the house.

Sphinx's `conf.py` calls `everything`.  Pages go to docs/reference/generated and docs/notebooks, which git ignores.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import rooms

MODULES = (
    *("sandbox", "sandbox.backends", "sandbox.blocks", "sandbox.closure_optimizers", "sandbox.curvature", "sandbox.datasets"),
    *("sandbox.ensemble", "sandbox.equivalence", "sandbox.experiments.callbacks", "sandbox.forms.toml"),
    *("sandbox.integrations", "sandbox.optimizer.source_state", "sandbox.probes", "sandbox.schedules"),
    *("sandbox.studies", "sandbox.tasks", "theory_checks", "theory_checks.problems", "theory_checks.claims.coupling"),
    *("theory_checks.claims.nonconvex", "theory_checks.claims.regret", "theory_checks.claims.scale_invariance"),
    *("theory_checks.claims.weak_secant", "theory_checks.claims.momentum_worst_case", "theory_checks.open_questions.questions"),
    *("theory_checks.open_questions.rates", "theory_checks.proofs.certificates", "theory_checks.proofs.counterexamples"),
    *("theory_checks.search.adversary", "variants"),
)
FAMILIES = ("apollo", "ablations", "peers", "adaptive", "history", "matrix")
COMMANDS = (
    *("compare", "report", "sweep", "curvature", "calibrate", "check", "study"),
    *("same", "show", "source", "variants", "tasks"),
)
STEPS = 40


# -- docstrings as Markdown ----------------------------------------------------------------------------------------------


def markdown(text: str) -> str:
    """A docstring as Markdown: indented and aligned lines stay as they are, "name: text" becomes a list."""
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", inspect.cleandoc(text)) if block.strip())


def _block(block: str) -> str:
    lines = block.splitlines()
    if all(line.startswith("    ") for line in lines) or any(re.search(r"\S {3,}\S", line) for line in lines[1:]):
        return f"```text\n{inspect.cleandoc(block)}\n```"
    if re.match(r"[\w*.]+(, [\w*.]+)*: ", lines[0]):
        items = []
        for line in lines:
            if not line.startswith("    ") and re.match(r"[\w*.]+(, [\w*.]+)*: ", line):
                items.append(line)
            else:
                items[-1] += " " + line.strip()
        return "\n".join("- **{}**: {}".format(*map(escape, item.split(": ", 1))) for item in items)
    return escape("\n".join(line.strip() for line in lines))


def escape(text: str) -> str:
    """Escapes what Markdown would read as markup, outside of `code`."""
    parts = re.split(r"(`[^`\n]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<>\[\]$#|~])", r"\\\1", part) for part in parts)


# -- reference -----------------------------------------------------------------------------------------------------------


def public_names(module: ModuleType) -> list[str]:
    """The names that a module offers: its `__all__`, or else the functions and classes that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    defined = [(name, value) for name, value in vars(module).items() if not name.startswith("_")]
    return [name for name, value in defined if getattr(value, "__module__", "") == module.__name__ and callable(value)]


def signature(value: Any) -> str:
    """A signature as Sphinx reads it; "" where Python knows none."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    shown = []
    for p in found.parameters.values():
        default = p.default if p.default is p.empty else _Shown(p.default)
        annotation = _Text(p.annotation) if isinstance(p.annotation, str) else p.annotation
        shown.append(p.replace(default=default, annotation=annotation))
    result = _Text(found.return_annotation) if isinstance(found.return_annotation, str) else found.return_annotation
    return str(found.replace(parameters=shown, return_annotation=result))


class _Text(str):
    """An annotation, shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


class _Shown:
    """A default value, without addresses."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        text = re.sub(r" at 0x\w+", "", repr(self.value))
        return "…" if "<" in text or len(text) > 60 else text


def entry(module: str, name: str, value: Any) -> str:
    """One public name: what it is, its signature, its docstring, and a class's own public methods."""
    own = inspect.getdoc(value) if inspect.isclass(value) or inspect.isroutine(value) else None
    if inspect.ismodule(value):
        target = f"[{value.__name__}]({value.__name__}.md)" if value.__name__ in MODULES else f"`{value.__name__}`"
        return f"**{escape(name)}**, the module {target}: {escape((value.__doc__ or '').strip().splitlines()[0])}"
    if inspect.isclass(value):
        head = f"````{{py:class}} {name}{signature(value)}"
        methods = [
            (key, member)
            for key, member in vars(value).items()
            if not key.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)) and member.__doc__
        ]
        inner = []
        for key, member in methods:
            is_property = isinstance(member, property)
            kind, arguments = ("property", "") if is_property else ("method", _without_self(signature(member)))
            inner.append(f"```{{py:{kind}}} {key}{arguments}\n{markdown(member.__doc__ or '').replace('```', '~~~')}\n```")
        return f"{head}\n{markdown(own or '').replace('```', '~~~')}\n\n" + "\n\n".join(inner) + "\n````"
    if callable(value) and own:
        return f"````{{py:function}} {name}{signature(value)}\n{markdown(own).replace('```', '~~~')}\n````"
    return f"````{{py:data}} {name}\n{escape(repr(_Shown(value)))}\n````"


def _without_self(arguments: str) -> str:
    return re.sub(r"^\(self(, /)?(, )?", "(", arguments)


def api(folder: Path) -> None:
    """A page per public module."""
    for name in MODULES:
        module = importlib.import_module(name)
        entries = [entry(name, key, getattr(module, key)) for key in public_names(module)]
        body = "\n\n".join(entries)
        text = f"# {name}\n\n```{{py:module}} {name}\n```\n\n{markdown(module.__doc__ or '')}\n\n## Names\n\n{body}\n"
        (folder / f"{name}.md").write_text(text)
    listed = "\n".join(MODULES)
    (folder / "api.md").write_text(f"# Modules\n\nEvery public name, by module.\n\n```{{toctree}}\n{listed}\n```\n")


def family(name: str) -> list[str]:
    """The variants that a module of `variants` defines."""
    import variants

    module = importlib.import_module(f"variants.{name}")
    makers = {
        key.replace("_", "-") for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    }
    return [key for key in variants.names() if key in makers]


def recipes(folder: Path) -> None:
    """A page per family: of each recipe its equations, numbers, state, gradients per step, source and differences."""
    import variants

    for kind in FAMILIES:
        module = importlib.import_module(f"variants.{kind}")
        lines = [f"# Recipes: {kind}", markdown(module.__doc__ or ""), f"![training losses]({kind}.png)"]
        for name in family(kind):
            recipe = variants.get(name)
            facts = f"lr {recipe.lr:g}; gradients per step: {recipe.analysis.evaluations}"
            states = ", ".join(f"`{key}` ({what})" for key, what in recipe.analysis.state_kinds.items()) or "none"
            lines += [f"({name})=\n## {name}", markdown(variants.about(name)), f"```text\n{recipe}\n```"]
            lines += [f"{facts}. State: {states}."]
        (folder / f"recipes-{kind}.md").write_text("\n\n".join(lines) + "\n")
    pages = "\n".join(f"recipes-{kind}" for kind in FAMILIES)
    (folder / "recipes.md").write_text(f"# Recipes\n\nEvery variant, by family.\n\n```{{toctree}}\n{pages}\n```\n")


def blocks(folder: Path) -> None:
    """Every block by slot, in the order of a step."""
    from sandbox import blocks as package
    from sandbox.blocks.flow import SLOTS

    every = [(name, getattr(package, name)) for name in package.__all__]
    concrete = [(name, value) for name, value in every if inspect.isclass(value) and dataclasses.is_dataclass(value)]
    lines = ["# Blocks by slot", "Signatures and texts: [sandbox.blocks](sandbox.blocks.md)."]
    for slot in (*SLOTS, "number"):
        rows = [(name, value) for name, value in concrete if slot in value.slots]
        table = ["| block | equation | numbers | state |", "|---|---|---|---|"]
        for name, value in rows:
            equation = (inspect.getdoc(value) or "").splitlines()[0].partition("   ")[0]
            fields = [f"{f.name}={f.default!r}" for f in dataclasses.fields(value) if f.default is not dataclasses.MISSING]
            state = value.state if isinstance(value.state, dict) else {}
            cells = [name, equation, ", ".join(fields), ", ".join(f"{key} ({kind})" for key, kind in state.items())]
            table.append("| " + " | ".join(escape(cell) for cell in cells) + " |")
        lines += [f"## {slot}", "\n".join(table)]
    (folder / "blocks.md").write_text("\n\n".join(lines) + "\n")


def command_line(folder: Path) -> None:
    """The help of every command, as the program prints it."""
    from sandbox import cli

    lines = ["# Command line"]
    for name in ("", *COMMANDS):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit), mock.patch.dict(os.environ, COLUMNS="100"):
            cli.main([*([name] if name else []), "--help"])
        text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
        lines += [f"## apollo-sandbox {name}".rstrip(), f"```text\n{text.rstrip()}\n```"]
    (folder / "command-line.md").write_text("\n\n".join(lines) + "\n")


# -- pictures ------------------------------------------------------------------------------------------------------------


def gallery(folder: Path) -> None:
    """A picture per family: training loss of each recipe at its own rate, one seed, on digits-mlp."""
    import matplotlib.pyplot as plt

    import sandbox

    lines = [
        "# Gallery",
        f"Training loss on each step's batch (mean of five), {STEPS} updates of `digits-mlp`, one seed, each recipe at its own "
        "default rate without warm-up: what they look like, not which is better (`sandbox.compare` says that). "
        "`docs/generate.py` draws the pictures.",
    ]
    for kind in FAMILIES:
        names, path = family(kind), folder / f"{kind}.png"
        if not path.exists():
            result = sandbox.ensemble.run(names, "digits-mlp", seeds=1, steps=STEPS)
            figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
            for i, (name, loss) in enumerate(zip(names, result.loss, strict=True)):
                smooth = [loss[max(0, t - 4) : t + 1].mean() for t in range(len(loss))]
                axes.plot(range(1, len(loss) + 1), smooth, ["-", "--"][i // 10], label=name, lw=1.4)
            axes.set(xlabel="updates", ylabel="training loss", yscale="log")
            axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
            figure.savefig(path, dpi=110)
            plt.close(figure)
        lines += [f"## [{kind}](recipes-{kind}.md)", f"![training losses of the family {kind}]({kind}.png)"]
    (folder / "gallery.md").write_text("\n\n".join(lines) + "\n")


def everything(docs: Path) -> None:
    """Generates all pages; pictures that are there already are kept (`make clean` removes them)."""
    folder, notebooks = docs / "reference" / "generated", docs / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(docs.parent / "notebooks", notebooks, dirs_exist_ok=True, ignore=shutil.ignore_patterns("studies", "*.py"))
    rooms.draw(docs.parent, folder / "house.svg")
    with mock.patch.dict(os.environ, NO_COLOR="1"), mock.patch.object(sys, "argv", ["apollo-sandbox"]):
        api(folder)
        recipes(folder)
        blocks(folder)
        command_line(folder)
        gallery(folder)
