"""A recipe's parts by name: its numbers by dotted path, its structure without them, and what two recipes differ in."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from sandbox import blocks
from sandbox.blocks import Block
from sandbox.blocks.flow import SLOTS
from sandbox.blocks.number import is_function, is_number, show
from sandbox.recipe.roles import Roles

# Blocks of the slots that came last, which do what a step did without them: no text and no older checkpoint names them.
PLAIN: dict[str, Any] = {
    "pairs": blocks.Successive(),
    "basis": blocks.Standard(),
    "solve": blocks.Divide(),
    "adjust": (),
    "readout": blocks.Last(),
}
SEVERAL = ("gradient", "adjust")  # the slots that hold any number of blocks


def misfit(slot: str, block: Any) -> str:
    """What a slot takes, for the error about something else."""
    fitting = [name for name in blocks.__all__ if slot in getattr(getattr(blocks, name), "slots", ())]
    fitting = [name for name in fitting if name.lower() != slot]
    given = f"{type(block).__name__} (which goes into {' or '.join(block.slots)})" if isinstance(block, Block) else repr(block)
    return f"slot {slot!r} does not take {given}. It takes {', '.join(sorted(fitting))}, or a block of your own"


def structure(value: Any) -> str:
    """A block, or several, as text without numbers; functions of t count as structure."""
    if isinstance(value, tuple):
        return f"({', '.join(map(structure, value))})"
    if not isinstance(value, Block):
        named = plain_function(value) and hasattr(value, "__qualname__")
        return f"{value.__module__}:{value.__qualname__}" if named else repr(value)
    # a number's value is no structure; that it is a function of t, and which, is
    every = dataclasses.fields(value)  # type: ignore[arg-type]
    fields = [f for f in every if not is_number(f) or is_function(getattr(value, f.name))]
    inside = ", ".join(f"{f.name}={structure(getattr(value, f.name))}" for f in fields)
    home = "" if type(value).__module__.startswith("sandbox.blocks") else f"{type(value).__module__}:"
    return f"{home}{type(value).__name__}({inside})"


def plain_function(value: Any) -> bool:
    """Whether a number is a function of t that is no block."""
    return callable(value) and not isinstance(value, Block | Tensor)


def hyperparameters(path: str, value: Any) -> dict[str, Any]:
    """Dotted name -> value of every number in `value`, functions of t by their parameters."""
    if not isinstance(value, Block):
        return {path: value}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        inner = getattr(value, field.name)
        if isinstance(inner, Block) or (is_number(field) and not plain_function(inner)):
            values |= hyperparameters(f"{path}.{field.name}", inner)
    return values


def places(path: str, block: Block) -> list[str]:
    """The dotted names of all fields of a block that hold a number or a function of t, and of those inside them."""
    names = []
    for field in dataclasses.fields(block):  # type: ignore[arg-type]
        inner, name = getattr(block, field.name), f"{path}.{field.name}"
        names += [name] if is_number(field) else []
        names += places(name, inner) if isinstance(inner, Block) else []
    return names


def own_places(path: str, block: Block) -> list[str]:
    """The dotted names of a block's hyperparameters and of those of the blocks inside it; a Schedule counts as one value."""
    names = []
    for field in dataclasses.fields(block):  # type: ignore[arg-type]
        inner, name = getattr(block, field.name), f"{path}.{field.name}"
        names += [name] if is_number(field) else own_places(name, inner) if isinstance(inner, Block) else []
    return names


def value_at(owner: Any, name: str) -> Any:
    """The value of the field with this dotted name."""
    for part in name.split("."):
        owner = owner[int(part)] if isinstance(owner, tuple) else getattr(owner, part)
    return owner


def replaced(owner: Any, name: str, value: Any, *, check: bool = True) -> Any:
    """`owner` with the field of this dotted name replaced; without a check, also by a tracer or a value out of range."""
    head, _, rest = name.partition(".")
    if isinstance(owner, tuple):
        return tuple(replaced(v, rest, value, check=check) if str(i) == head else v for i, v in enumerate(owner))
    inner = replaced(getattr(owner, head), rest, value, check=check) if rest else value
    if check:
        return dataclasses.replace(owner, **{head: inner})
    new = object.__new__(type(owner))
    for field in dataclasses.fields(owner):
        object.__setattr__(new, field.name, inner if field.name == head else getattr(owner, field.name))
    return new


def is_inner(value: Any) -> bool:
    """Whether a field holds a recipe, or `Roles` that may."""
    return hasattr(value, "branch") or isinstance(value, Roles)


def at_step(owner: Any, t: Any) -> Any:
    """A recipe or block with every hyperparameter that is a function of t replaced by its value."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if is_number(field) and is_function(value):
            changes[field.name] = value(t)
        elif isinstance(value, Block) or is_inner(value):
            changes[field.name] = at_step(value, t)
        elif isinstance(value, tuple):
            changes[field.name] = tuple(at_step(v, t) if isinstance(v, Block) else v for v in value)
    changed = {name: value for name, value in changes.items() if value is not getattr(owner, name)}
    return dataclasses.replace(owner, **changed) if changed else owner


def difference(base: Any, other: Any) -> str:
    """What `other` has instead of `base`, as "[rectifier=SoftAbsolute(sigma=0.01), scope=channel]"; "" where nothing."""
    parts = []
    for name in ("lr", *SLOTS, "scope", "vectors", "roles"):
        old, new = getattr(base, name), getattr(other, name)
        if old is new or str(old) == str(new):
            continue
        if isinstance(new, Block | Roles) and type(old) is type(new):
            mine = {f.name: getattr(new, f.name) for f in dataclasses.fields(new)}  # type: ignore[arg-type]
            parts += [f"{name}.{key}={_show(value)}" for key, value in mine.items() if str(value) != str(getattr(old, key))]
        else:
            parts.append(f"{name}={_show(new)}")
    return f"[{', '.join(parts)}]" if parts else ""


def _show(value: Any) -> str:
    if getattr(value, "name", None):
        return str(value.name)
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or "none"
    return show(value)
