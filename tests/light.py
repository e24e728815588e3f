"""Variants for tests of what does not depend on the length of a history."""

import dataclasses
import functools

import pytest
from torch.utils import _pytree as pytree

import sandbox
import variants
from sandbox.blocks import Block

SHORT = 3


def _asks_for_more(name):
    recipe = variants.get(name)
    return "sampled" in recipe.analysis.inputs or recipe.basis.factors is not None


# Those that need no likelihood to draw labels from, and no layers; the problems of most tests have none.
NAMES = [name for name in variants.names() if not _asks_for_more(name)]


@functools.cache
def _blocks(name):
    blocks = [block for _, block in variants.get(name).blocks()]
    return (
        {variants.get(name).scope}
        | {type(b).__name__ for b in blocks}
        | {type(getattr(b, "inner", b)).__name__ for b in blocks}
    )


def _covering():
    """A few variants that together have every block and scope, whole matrices apart: tests/variants runs those in each backend."""
    found = ["apollo", "adamw", "global-secant"]
    rest = [name for name in NAMES if not variants.get(name).analysis.matrix]
    while True:
        seen = set().union(*map(_blocks, found))
        most = max(rest, key=lambda name: len(_blocks(name) - seen))
        if not _blocks(most) - seen:
            return found
        found.append(most)


COVERING = _covering()
MATRIX = [name for name in NAMES if variants.get(name).analysis.matrix]


def _mechanism(name):
    """What a backend has to do for a variant, whatever its blocks compute."""
    recipe = light(name)
    kept = recipe.analysis.stores_direction, recipe.analysis.stores_gradient, bool(recipe.analysis.recalled)
    return (
        recipe.scope,
        frozenset(recipe.analysis.state_kinds.values()),
        recipe.analysis.inputs,
        recipe.analysis.needs_norm,
        kept,
    )


def each(names, few=(*COVERING, *MATRIX)):
    """Names for a test of every variant: `make test` takes few, those that bring a new block; `make test-all` the others too."""
    return [pytest.param(name, marks=[] if name in few else [pytest.mark.slow]) for name in names]


# Every backend, for a test whose one compiled graph costs seconds and adds little to other tests of compiled steps.
BACKENDS = [pytest.param(name, marks=[pytest.mark.slow] if name == "compiled" else []) for name in sandbox.backends.NAMES]


def each_backend(values, *, compiled=None):
    """(value, backend) for a test of both; `make test` compiles one of the values, or none."""
    for value in values:
        for backend in ("eager", "compiled", "scripted"):
            costly = backend == "compiled" and value != compiled
            yield pytest.param(
                value, backend, id=f"{getattr(value, '__name__', value)}-{backend}", marks=[pytest.mark.slow] if costly else []
            )


def light(name, pairs=SHORT):
    """The variant, with a history of at most so many pairs: a hundred make graphs that take minutes to compile."""
    recipe = variants.get(name)
    changed = {path: _shortened(block, pairs) for path, block in recipe.blocks() if "." not in path}
    return dataclasses.replace(recipe, **changed)


def _shortened(block, pairs):
    fields = {f.name: getattr(block, f.name) for f in dataclasses.fields(block)}
    inner = {name: _shortened(value, pairs) for name, value in fields.items() if isinstance(value, Block)}
    shorter = {name: pairs for name in ("memory", "window") if fields.get(name, 0) > pairs}
    return dataclasses.replace(block, **inner, **shorter)


# One variant of each kind of work for a backend, where all that bring a block would take too long; and with matrices.
MECHANISMS = list({_mechanism(name): name for name in reversed(COVERING)}.values())
KINDS = [*MECHANISMS, *MATRIX]


def inputs_of(recipe, grads):
    """Inputs of a step as a test without a loss makes them: the gradient itself, and products with it for factors of layers."""

    def factor(name, g):
        rows = g.reshape(g.shape[0] if g.ndim else 1, -1)
        return rows @ rows.mT if name == "G" else rows.mT @ rows

    return {
        name: pytree.tree_map(lambda g, name=name: factor(name, g) if name in ("G", "A") else g, grads)
        for name in recipe.analysis.inputs
    }
