"""Recipes as TOML and back.

    name = "apollo"
    lr = 0.01
    scope = "parameter"

    [rectifier]
    block = "AbsoluteFloor"        # a block of sandbox.blocks, or "my_module:MyBlock"
    sigma = 0.01

Every slot is a table, `gradient` and `adjust` are arrays of tables; `vectors` is a recipe, and so is each role in `roles`, or a
text.  What is left out has the default of `Recipe` or of the block.  A number that is a plain function of t is written
{function = "module:name"}.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tomllib
from typing import Any

import tomli_w
from torch import Tensor

from sandbox import blocks
from sandbox.blocks import Block
from sandbox.blocks.number import is_number
from sandbox.recipe import Recipe, parts
from sandbox.recipe.parts import SLOTS
from sandbox.recipe.roles import Roles
from sandbox.utils import imports, suggest


def dumps(recipe: Recipe) -> str:
    """The TOML text of a recipe, every number in it."""
    return tomli_w.dumps(_table(recipe))


def loads(text: str) -> Recipe:
    """The recipe of a TOML text.  Raises ValueError for what is no TOML, an unknown key, block or import path."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not a recipe in TOML: {error}") from error
    return _recipe(table)


def _recipe(table: Any) -> Recipe:
    if not isinstance(table, dict):
        raise ValueError(f"a recipe is a table of slots, got {table!r}")
    fields = {f.name for f in dataclasses.fields(Recipe)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            raise ValueError(suggest.unknown("key of a recipe", key, fields))
        if key in parts.SEVERAL:
            values[key] = tuple(_block(row, key) for row in (value if isinstance(value, list) else [value]))
        elif key == "vectors":
            values[key] = _recipe(value)
        elif key == "roles" and isinstance(value, dict):
            values[key] = {role: who if isinstance(who, str) else _recipe(who) for role, who in value.items()}
        else:
            values[key] = _value(value, key) if key in (*SLOTS, "lr") else value
    return Recipe(**values)


def fingerprint(recipe: Recipe) -> str:
    """SHA-256 of the TOML text without the name, its first twelve digits."""
    table = _table(recipe)
    del table["name"]
    return hashlib.sha256(tomli_w.dumps(table).encode()).hexdigest()[:12]


def _table(owner: Any) -> dict[str, Any]:
    table: dict[str, Any] = {} if isinstance(owner, Recipe) else {"block": _path(type(owner))}
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if isinstance(owner, Recipe) and parts.PLAIN.get(field.name) == value:
            continue
        if isinstance(value, Block | Recipe):
            table[field.name] = _table(value)
        elif isinstance(value, Roles):
            given = {role: who if isinstance(who, str) else _table(who) for role, who in value.given().items()}
            table |= {"roles": given} if given else {}
        elif isinstance(value, tuple):
            table[field.name] = [_table(v) if isinstance(v, Block) else v for v in value]
        elif isinstance(value, Tensor):
            if value.numel() > 1:
                raise ValueError(f"{type(owner).__name__}.{field.name} is a batch of values; a TOML recipe holds one")
            table[field.name] = float(value)
        elif is_number(field) and callable(value):
            table[field.name] = {"function": _path(value)}
        elif value is None:
            if field.default is not None:
                raise ValueError(f"{type(owner).__name__}.{field.name} is None, for which TOML has no word")
        elif isinstance(value, bool | int | float | str):
            table[field.name] = value
        else:
            raise ValueError(f"{type(owner).__name__}.{field.name} = {value!r} cannot be written as TOML")
    return table


def _path(thing: Any) -> str:
    """The shortest name by which `thing` is found again in another process."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", repr(thing))
    if getattr(blocks, name, None) is thing:
        return name
    if module in (None, "__main__") or "<" in name:
        raise ValueError(
            f"{name} has no import path that another process could use; define it at the top of a module of its own"
        )
    return f"{module}:{name}"


def _value(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        if "function" not in value:
            return _block(value, key)
        if not isinstance(value["function"], str) or not callable(function := imports.attribute(value["function"])):
            raise ValueError(f"{key}: {value['function']!r} is not the import path of a function, as 'module:name'")
        return function
    return tuple(value) if isinstance(value, list) else value


def _block(table: dict[str, Any], key: str) -> Block:
    if not isinstance(table, dict) or "block" not in table:
        raise ValueError(f'{key}: expected a table with block = "Name", got {table!r}')
    name = table["block"]
    if not isinstance(name, str):
        raise ValueError(f"{key}: the block's name must be a text, got {name!r}")
    cls = imports.attribute(name) if ":" in name else getattr(blocks, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Block) and dataclasses.is_dataclass(cls)):
        if ":" not in name:
            raise ValueError(
                suggest.unknown("block", name, [n for n in blocks.__all__ if dataclasses.is_dataclass(getattr(blocks, n))])
            )
        raise ValueError(f"{key}: {name!r} is not a block (a class made with @block)")
    fields = {f.name for f in dataclasses.fields(cls)}
    values = {k: _value(v, f"{key}.{k}") for k, v in table.items() if k != "block"}
    for k in values:
        if k not in fields:
            raise ValueError(suggest.unknown(f"number of {name}", k, fields))
    return cls(**values)
