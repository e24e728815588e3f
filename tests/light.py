"""Variants for tests of what does not depend on the length of a history."""

import dataclasses

import variants
from sandbox.blocks import Block

SHORT = 3

# Those that need no likelihood to draw labels from; the problems of most tests have none.
NAMES = [name for name in variants.names() if "sampled" not in variants.get(name).inputs]


def light(name, pairs=SHORT):
    """The variant, with a history of at most so many pairs: a hundred make graphs that take minutes to compile."""
    recipe = variants.get(name)
    changed = {path: _shortened(block, pairs) for path, block in recipe.blocks() if "." not in path}
    return dataclasses.replace(recipe, **changed)


def _shortened(block, pairs):
    fields = {f.name: getattr(block, f.name) for f in dataclasses.fields(block)}
    inner = {name: _shortened(value, pairs) for name, value in fields.items() if isinstance(value, Block)}
    return dataclasses.replace(block, **inner, **({"memory": pairs} if fields.get("memory", 0) > pairs else {}))
