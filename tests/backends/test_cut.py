"""A traced step cut at its scope sums: coordinates split over parts, sums completed between the phases, as if they were one."""

import functools

import pytest
import torch

import variants
from sandbox.backends.tracing import graph
from sandbox.backends.tracing.cut import Reduction, cut
from sandbox.backends.tracing.layout import REDUCED
from sandbox.recipe import pure

# phases: one more than the reductions that depend on one another
PHASES = {
    "sgd": 1,
    "adamw": 1,
    "apollo": 2,
    "scale-invariant": 2,
    "global-secant": 2,
    "apollo-stable": 3,  # a weak secant; then the mean of D
    "lbfgs": 4,  # whether the pair is taken; then ten pairs, there and back
}
SUM, MAX = Reduction("sum", "scope"), Reduction("max", "scope")
REDUCTIONS = {
    "apollo": [SUM] * 3,
    "scale-invariant": [SUM, SUM, SUM, MAX],
    # Σ 1 needs nothing, Σ D needs the three of the secant
    "apollo-stable": [SUM, SUM, SUM, Reduction("sum", "tensor"), Reduction("sum", "tensor")],
}


@functools.cache
def traced(name, opaque):
    recipe = variants.get(name)
    values, structure = graph.numbers_of(recipe, 5.0, 0.01, pure.first_numbers(recipe), evaluated=True)
    double = torch.float64
    signature = graph.Signature(structure, "whole", 1, recipe.scope, double, double, double, "cpu", evaluated=True)
    return recipe, values, graph.trace(recipe, signature, opaque=opaque, marked=True)


def leaf(recipe, values, n, draw):
    """Inputs of the graph of one vector of n entries: numbers, θ, g, states."""
    states = [
        torch.randn(n if kind == "element" else 1, generator=draw, dtype=torch.float64).abs()
        for kind in recipe.analysis.state_kinds.values()
    ]
    return [
        torch.tensor(values, dtype=torch.float64),
        *(torch.randn(n, generator=draw, dtype=torch.float64) for _ in "θg"),
        *states,
    ]


@pytest.mark.parametrize(("name", "opaque"), [*((name, True) for name in PHASES), ("scale-invariant", False)])
def test_two_parts_of_one_tensor_are_as_good_as_one(name, opaque):
    """Two vectors, each with a graph of its own, whose sums are completed between the phases, against their joined vector in
    the uncut graph: float64, sums of 900 terms in another order, so 1e-12."""
    recipe, values, whole = traced(name, opaque)
    draw = torch.Generator().manual_seed(0)
    joined = leaf(recipe, values, 900, draw)
    kinds = ["number", "element", "element", *recipe.analysis.state_kinds.values()]
    parts = [
        [x.clone() if kind in ("number", "scope", "tensor") else x[a:b].clone() for x, kind in zip(joined, kinds, strict=True)]
        for a, b in ((0, 500), (500, 900))
    ]
    whole(*joined)
    phases, sums = cut(whole), []
    assert len(phases) == PHASES[name]
    for phase in phases:
        before = [[x.clone() for x in part] for part in parts]
        found = [phase.graph(*part, *sums) for part in parts]
        if phase is not phases[-1]:  # nothing is written before the last phase
            assert all(
                torch.equal(x, y) for part, old in zip(parts, before, strict=True) for x, y in zip(part, old, strict=True)
            )
        for reduction, one, two in zip(phase.reductions, *found, strict=True):
            sums.append(one + two if reduction.op == "sum" else torch.maximum(one, two))
    for x, kind, one, two in zip(joined, kinds, *parts, strict=True):
        torch.testing.assert_close(torch.cat([one, two]) if kind == "element" else one, x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_no_phase_reduces_itself_and_each_takes_the_inputs_and_the_sums_so_far(name):
    _, _, whole = traced(name, opaque=True)
    phases = cut(whole)
    inputs, sums = sum(n.op == "placeholder" for n in whole.graph.nodes), 0
    for phase in phases:
        nodes = list(phase.graph.graph.nodes)
        assert not any(n.target is REDUCED for n in nodes)
        assert sum(n.op == "placeholder" for n in nodes) == inputs + sums
        assert all("val" in n.meta for n in nodes if n.op == "placeholder")  # what Inductor reads sizes from
        sums += len(phase.reductions)
    assert [reduction for phase in phases for reduction in phase.reductions] == REDUCTIONS[name]
    assert not phases[-1].reductions
