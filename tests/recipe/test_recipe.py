"""Composing recipes, their forms, and the purity of `update`."""

import dataclasses
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import sandbox
import variants
from sandbox import blocks
from sandbox.blocks import (
    EMA,
    AbsoluteFloor,
    Box,
    ClipGlobalNorm,
    HeavyBall,
    L2Decay,
    Monotone,
    NoMoment,
    SoftAbsolute,
    WeakSecant,
)
from sandbox.forms import toml
from sandbox.parts import SLOTS
from sandbox.recipe import Recipe
from sandbox.schedules import Geometric, InverseSquareRoot
from tests import outside_blocks
from tests.light import light
from tests.problem import Problem

# -- composing -------------------------------------------------------------------------------------------------------


def test_replace_is_one_line():
    recipe = variants.get("apollo").replace(rectifier=SoftAbsolute(sigma=0.1))
    assert recipe.rectifier == SoftAbsolute(sigma=0.1)
    assert recipe.name == "apollo[rectifier=SoftAbsolute(sigma=0.1)]"
    assert variants.get("apollo").replace(rectifier=SoftAbsolute(), name="mine").name == "mine"


def test_replace_by_dotted_number():
    recipe = variants.get("monotone").replace(**{"rectifier.inner.sigma": 0.5, "moment.beta": 0.0})
    assert recipe.rectifier == Monotone(inner=AbsoluteFloor(sigma=0.5), ceiling=4.0)
    assert recipe.moment.beta == 0.0


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"rectifer": SoftAbsolute()}, ValueError, "unknown slot 'rectifer'; did you mean 'rectifier'?"),
        ({"rectifier": EMA()}, TypeError, "does not take EMA (which goes into moment or averaging). It takes AbsoluteFloor"),
        ({"rectifier": 3}, TypeError, "slot 'rectifier' does not take 3"),
        ({"gradient": (EMA(),)}, TypeError, "slot 'gradient' does not take EMA"),
        ({"scope": "chanel"}, ValueError, "did you mean 'channel'?"),
        ({"rectifier.sigm": 1.0}, ValueError, "did you mean 'rectifier.sigma'?"),
        ({"moment": NoMoment()}, ValueError, "take moment=EMA(beta=0)"),
        ({"gradient": (L2Decay(), ClipGlobalNorm())}, ValueError, "must come first"),
        ({"lr": -1.0}, ValueError, "lr must lie in [0, inf), got -1"),
    ],
)
def test_what_does_not_fit_says_what_fits(change, error, says):
    with pytest.raises(error, match=re.escape(says)):
        variants.get("apollo").replace(**change)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: AbsoluteFloor(sigma=0.0), "AbsoluteFloor: sigma must lie in (0, inf), got 0"),
        (lambda: EMA(beta=1.0), "EMA: beta must lie in [0, 1), got 1"),
        (lambda: EMA(beta=float("nan")), "EMA: beta must lie in [0, 1), got nan"),
        (lambda: EMA(beta=torch.tensor([0.5, 1.5])), "EMA: beta must lie in [0, 1), got 1.5"),
        (lambda: HeavyBall(nesterov=True, dampening=0.1), "nesterov=True needs dampening=0"),
        (lambda: Box(low=1.0, high=0.0), "low must not exceed high"),
        (lambda: Box(low=float("inf"), high=float("inf")), "Box: low must lie in [-inf, inf), got inf"),
    ],
)
def test_numbers_are_checked(make, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        make()


@pytest.mark.parametrize("value", ["0.9", True, None, torch.tensor(1)])
def test_what_is_no_number_is_an_error(value):
    with pytest.raises(TypeError, match=r"EMA: beta must be"):
        EMA(beta=value)


def test_blocks_are_frozen_keyword_only_and_registered():
    for name in blocks.__all__:
        cls = getattr(blocks, name)
        if not dataclasses.is_dataclass(cls) or cls is blocks.Flow:
            continue
        made = cls()
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.anything = 1
        if dataclasses.fields(cls):
            with pytest.raises(TypeError):
                cls(0.5)
        leaves, spec = pytree.tree_flatten(made)
        assert all(isinstance(leaf, float) for leaf in leaves)
        assert pytree.tree_unflatten(leaves, spec) == made
        for slot in made.slots:
            assert made.written(slot), name
            assert made.written(slot, latex=True) or isinstance(made, blocks.Schedule), name


def test_ablate_names_the_cross_product_by_difference():
    base = variants.get("apollo")
    made = sandbox.ablate(base, rectifier=[AbsoluteFloor(), SoftAbsolute()], **{"moment.beta": [0.9, 0.0]})
    assert [r.name for r in made] == [
        "apollo",
        "apollo[moment.beta=0]",
        "apollo[rectifier=SoftAbsolute(sigma=0.01)]",
        "apollo[moment.beta=0, rectifier=SoftAbsolute(sigma=0.01)]",
    ]
    single = sandbox.ablate(base, one_at_a_time=True, rectifier=[SoftAbsolute()], scope=["global", "channel"])
    assert [r.name for r in single] == [
        "apollo",
        "apollo[rectifier=SoftAbsolute(sigma=0.01)]",
        "apollo[scope=global]",
        "apollo[scope=channel]",
    ]
    with pytest.raises(ValueError, match="no choices"):
        sandbox.ablate(base, rectifier=[])
    with pytest.raises(TypeError, match="must be a list"):
        sandbox.ablate(base, scope="global")


# -- forms -----------------------------------------------------------------------------------------------------------


def test_text_is_the_algorithm_with_its_numbers():
    assert str(variants.get("apollo-l2")).splitlines() == [
        "apollo-l2: 2 words of state a parameter (d recomputed from it), scope parameter",
        "              g = ∇f(θ)                                            t = 1, 2, …",
        "  gradient    g = g + γ θ                                          γ = 0.0005",
        "  moment      m = (1-a) m + a g,  a = (1-β)/(1-βᵗ)                 β = 0.9",
        "  curvature   α = (dᵀy + dᵀB d)/(‖d‖₄ + ε)⁴;  B = B - (1-δ) α d²   ε = 0.0001, δ = 0",
        "  averaging   B̄ = B",
        "  rectifier   D = max(|B̄|, σ)                                      σ = 0.01",
        "  decay       d = m/D",
        "  projection  θ = θ - η d                                          η = 0.01",
    ]
    assert "B̄ = (1-a) B̄ + a B" in str(variants.get("hessian-ema"))


@pytest.mark.parametrize("name", variants.names())
def test_every_variant_renders(name):
    recipe = variants.get(name)
    shown = recipe._repr_markdown_()
    for path, block in recipe.blocks():
        equation = block.written(path.split(".")[0], latex=True)
        if isinstance(block, blocks.Successive | blocks.Standard):
            continue
        assert (equation.replace("m_t/D_t", recipe.solve.symbol[1]) if path == "decay" else equation) in shown
    assert shown.count("$$") == (2 if recipe.vectors is None else 4)
    assert shown.count("{") == shown.count("}")
    assert len(variants.about(name).splitlines()[0]) > 20


@pytest.mark.parametrize("name", variants.names())
def test_toml_round_trip(name):
    recipe = variants.get(name)
    assert toml.loads(toml.dumps(recipe)) == recipe
    assert toml.fingerprint(toml.loads(toml.dumps(recipe))) == toml.fingerprint(recipe)


def test_toml_round_trip_of_what_is_not_in_the_package():
    recipe = Recipe(
        name="outside",
        lr=InverseSquareRoot(first=0.3),
        gradient=(ClipGlobalNorm(max_norm=2.0), L2Decay(weight_decay=0.1)),
        moment=EMA(beta=Geometric(first=0.9, ratio=0.99), bias_correction=False),
        curvature=outside_blocks.MeanAbsolute(beta=outside_blocks.decaying),
        rectifier=outside_blocks.Halfway(sigma=0.5),
        projection=Box(low=float("-inf"), high=2.0),
    )
    text = toml.dumps(recipe)
    assert 'block = "tests.outside_blocks:Halfway"' in text
    assert toml.loads(text) == recipe


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rectifier = 3", "slot 'rectifier' does not take 3"),
        ("[rectifer]\nblock = 'AbsoluteFloor'", "did you mean 'rectifier'?"),
        ("[rectifier]\nblock = 'AbsoluteFlor'", "did you mean 'AbsoluteFloor'?"),
        ("[rectifier]\nblock = 'AbsoluteFloor'\nsigm = 1.0", "did you mean 'sigma'?"),
        ("[rectifier]\nblock = 'nowhere.to:Be'", "cannot import 'nowhere.to:Be'"),
        ("[rectifier]\nsigma = 1.0", 'expected a table with block = "Name"'),
        ("not toml", "not a recipe in TOML"),
    ],
)
def test_bad_toml_is_explained(text, says):
    with pytest.raises((ValueError, TypeError), match=re.escape(says)):
        toml.loads(text)


def test_what_has_no_import_path_cannot_be_written():
    with pytest.raises(ValueError, match="no import path"):
        toml.dumps(variants.get("apollo").replace(moment=EMA(beta=lambda t: 0.5, bias_correction=False)))
    with pytest.raises(ValueError, match="is a batch of values"):
        toml.dumps(variants.get("apollo").replace(moment=EMA(beta=torch.tensor([0.1, 0.5]))))


def test_fingerprint_is_the_same_in_every_process_and_sees_every_number():
    apollo = variants.get("apollo")
    code = "import variants; from sandbox.forms import toml; print(toml.fingerprint(variants.get('apollo')))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert other == toml.fingerprint(apollo) == toml.fingerprint(apollo.replace(name="another"))
    assert len({toml.fingerprint(variants.get(name)) for name in variants.names()}) == len(variants.names())
    for name, value in apollo.hyperparameters().items():
        assert toml.fingerprint(apollo.replace(**{name: value / 2 + 0.1})) != toml.fingerprint(apollo)


def test_words_of_state():
    expected = {"apollo": 2, "apollow": 2, "belief": 2, "scale-invariant": 3, "hessian-ema": 3, "monotone": 3}
    expected |= {"sgd": 1, "adam": 2, "adamw": 2, "amsgrad": 3, "adagrad": 1, "rmsprop": 1, "adadelta": 2, "adahessian": 2}
    assert {name: variants.get(name).state_words for name in expected} == expected
    # d is stored only where it cannot be computed again
    assert not variants.get("apollow").stores_direction
    assert variants.get("apollow").replace(projection=Box()).stores_direction
    assert variants.get("apollow").replace(projection=Box()).state_words == 3
    assert not variants.get("apollo").replace(projection=Box()).stores_direction


# -- the pure update -------------------------------------------------------------------------------------------------


def start(recipe, seed=0):
    params = [torch.tensor(x) for x in Problem(seed).start]
    return recipe.init(params), params


@pytest.mark.parametrize("name", variants.names())
def test_update_is_pure(name):
    recipe = light(name)
    state, params = start(recipe)
    grads = [torch.tensor(g) for g in Problem(1).start]
    given = dict.fromkeys(recipe.inputs, grads)
    state, params = recipe.update(state, params, grads, **given)  # a state that is not all zero
    kept = pytree.tree_map(torch.clone, (state, params, grads))
    once = recipe.update(state, params, grads, **given)
    for a, b in zip(pytree.tree_leaves(kept), pytree.tree_leaves((state, params, grads)), strict=True):
        assert torch.equal(a, b)
    again = recipe.update(state, params, grads, **given)
    for a, b in zip(pytree.tree_leaves(once), pytree.tree_leaves(again), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", variants.names())
def test_update_traces_with_make_fx(name):
    """The graph, replayed on other numbers, equals the update bitwise: nothing was baked in."""
    recipe = light(name)

    def two_steps(state, params, grads, lr):
        for _ in range(2):
            state, params = recipe.update(state, params, grads, lr=lr, **dict.fromkeys(recipe.inputs, grads))
        return state, params

    state, params = start(recipe)
    grads = [torch.tensor(g) for g in Problem(1).start]
    lr = torch.tensor(0.01, dtype=torch.float64)
    graph = make_fx(two_steps)(state, params, grads, lr)
    state, params = graph(state, params, grads, lr)
    other = [torch.tensor(g) for g in Problem(2).start]
    traced, direct = graph(state, params, other, lr / 3), two_steps(state, params, other, lr / 3)
    for a, b in zip(pytree.tree_leaves(traced), pytree.tree_leaves(direct), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", variants.names())
def test_update_under_vmap_equals_single_runs(name):
    """Every number of the recipe, and η, as a batch of four: the same as four runs (1e-12: other kernels, 10 steps)."""
    base = light(name)
    factors = torch.tensor([1.0, 0.7, 0.5, 0.9], dtype=torch.float64)
    names = [n for n in base.hyperparameters() if n != "lr" and np.isfinite(base.hyperparameters()[n])]
    # RAdam's ρ_∞ > 4 bounds its β from below
    change = {n: base.hyperparameters()[n] * (factors if "beta" not in n or name != "radam" else factors**0.01) for n in names}
    stacked = base.replace(**change, name=base.name)
    singles = [base.replace(**{n: float(v[i]) for n, v in change.items()}) for i in range(4)]
    grads = [[torch.tensor(g) for g in Problem(k).start] for k in range(10)]
    rates = 0.01 * factors

    def train(recipe, lr):
        state, params = start(recipe)
        for g in grads:
            moved = [x + 0.1 * p for x, p in zip(g, params, strict=True)]
            state, params = recipe.update(state, params, moved, lr=lr, **dict.fromkeys(base.inputs, g))
        return params

    leaves, spec = pytree.tree_flatten(stacked)
    axes = pytree.tree_unflatten([0 if isinstance(v, torch.Tensor) else None for v in leaves], spec)
    together = torch.func.vmap(train, in_dims=(axes, 0))(stacked, rates)
    for i, single in enumerate(singles):
        for a, b in zip(together, train(single, float(rates[i])), strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-12, atol=1e-13)


def test_gradient_through_training():
    """d(final loss)/dη, d/dσ and d/dε through five steps, against central differences (relative error 1e-6)."""
    h = torch.tensor([0.5, 3.0, 12.0], dtype=torch.float64)

    def final(lr, sigma, eps):
        recipe = Recipe(curvature=WeakSecant(eps=eps), rectifier=SoftAbsolute(sigma=sigma))
        theta = torch.ones(3, dtype=torch.float64)
        state = recipe.init(theta)
        for _ in range(5):
            state, theta = recipe.update(state, theta, h * theta, lr=lr)
        return (h * theta.square()).sum()

    at = tuple(torch.tensor(v, dtype=torch.float64) for v in (0.05, 0.3, 0.1))
    slopes = torch.func.grad(final, argnums=(0, 1, 2))(*at)
    for i, slope in enumerate(slopes):
        step = 1e-6 * at[i]
        up, down = (tuple(v + s * step * (j == i) for j, v in enumerate(at)) for s in (1, -1))
        assert float(slope) == pytest.approx(float((final(*up) - final(*down)) / (2 * step)), rel=1e-6)
        assert float(slope) != 0


def test_numbers_as_functions_of_t():
    """β_t = β λ^{t-1} and η_t = η/√t equal the same numbers given by hand."""
    theta = [torch.tensor(x) for x in Problem().start]
    moving = Recipe(lr=InverseSquareRoot(first=0.1), moment=EMA(beta=Geometric(first=0.9, ratio=0.8), bias_correction=False))
    state, other_state, other = moving.init(theta), moving.init(theta), theta
    for t in range(1, 8):
        fixed = Recipe(lr=0.1 / t**0.5, moment=EMA(beta=0.9 * 0.8 ** (t - 1), bias_correction=False))
        state, theta = moving.update(state, theta, [0.3 * x + 1 for x in theta])
        other_state, other = fixed.update(other_state, other, [0.3 * x + 1 for x in other])
        for a, b in zip(theta, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=0)


def test_a_function_of_t_that_leaves_its_range_is_caught():
    recipe = Recipe(moment=EMA(beta=lambda t: 0.6 * t, bias_correction=False))
    optimizer = sandbox.Optimizer([torch.ones(2, requires_grad=True)], recipe, nonfinite="pass")
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    with pytest.raises(ValueError, match=re.escape("EMA: beta must lie in [0, 1), got 1.2")):
        optimizer.step()


def test_trees_and_bad_input():
    recipe = variants.get("apollo")
    tree = {"a": torch.ones(2), "b": [torch.ones(3), torch.ones(())]}
    state = recipe.init(tree)
    grads = {"a": torch.ones(2), "b": [None, torch.ones(())]}
    new, moved = recipe.update(state, tree, grads)
    assert set(new["b"][1]) == {"step", "lr", "rectifier.sigma", "moment.m", "curvature.B"}
    assert torch.equal(moved["b"][0], torch.ones(3))
    assert int(new["b"][0]["step"]) == 0
    assert int(new["a"]["step"]) == 1
    with pytest.raises(ValueError, match=re.escape("gradient of shape (3,) for a parameter of (2,)")):
        recipe.update(recipe.init(torch.ones(2)), torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="needs `hessian`"):
        hungry = variants.get("adahessian")
        hungry.update(hungry.init(torch.ones(2)), torch.ones(2), torch.ones(2))


REFUSED = [
    r"take moment=EMA\(beta=0\)",
    "allows no gradient block",
    "takes eigenvalues of a basis",
    "not known in a basis other",
]
REFUSED += ["do not go together", "scope 'global' makes one vector of all tensors"]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_compositions_run(data):
    """Any block in its slot composes, or the recipe says why not; and what composes steps, in float32 too."""
    chosen = {}
    for slot in SLOTS:
        fitting = [getattr(blocks, n) for n in blocks.__all__ if slot in getattr(getattr(blocks, n), "slots", ())]
        fitting = [b for b in fitting if dataclasses.is_dataclass(b)]
        block = data.draw(st.sampled_from(sorted(fitting, key=lambda b: b.__name__)))()
        chosen[slot] = (block,) if slot == "gradient" else block
    try:
        recipe = Recipe(**chosen, scope=data.draw(st.sampled_from(["parameter", "global", "channel", "coordinate"])))
    except ValueError as error:
        assert re.search("|".join(REFUSED), str(error))  # noqa: PT017
        return
    params = [torch.tensor(x, dtype=torch.float32) for x in Problem().start]
    state = recipe.init(params)
    for step in range(3):
        grads = [torch.tensor(g, dtype=torch.float32) for g in Problem(step).start]
        state, params = recipe.update(state, params, grads, lr=1e-3, **dict.fromkeys(recipe.inputs, grads))
    assert toml.loads(toml.dumps(recipe)) == recipe
    assert [p.dtype for p in params] == [torch.float32] * len(params)


# -- found in review -------------------------------------------------------------------------------------------------


def test_ablate_keeps_what_only_looks_the_same():
    made = sandbox.ablate("apollo", **{"moment.beta": [lambda t: 0.9, lambda t: 0.5, 0.9]})
    assert [r.name for r in made] == ["apollo[moment.beta=<lambda>(t)]", "apollo[moment.beta=<lambda>(t)] #2", "apollo"]
    batches = [torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.4]), torch.tensor([0.1, 0.2])]
    assert len(sandbox.ablate("apollo", **{"rectifier.sigma": batches})) == 2


def test_gradient_takes_any_iterable_once():
    made = variants.get("apollo").replace(gradient=(b for b in [L2Decay(weight_decay=0.5)]))
    assert made.gradient == (L2Decay(weight_decay=0.5),)
    assert variants.get("apollo").replace(gradient=L2Decay(weight_decay=0.5)).gradient == made.gradient
    with pytest.raises(TypeError, match="slot 'gradient' does not take None"):
        variants.get("apollo").replace(gradient=None)


def test_functions_of_t_can_be_replaced_by_name():
    base = variants.get("apollo")
    for function in (lambda t: 0.5, Geometric(first=0.9, ratio=0.9)):
        moving = base.replace(**{"moment.beta": function})
        assert moving.replace(**{"moment.beta": 0.5}).moment == EMA(beta=0.5)
    assert moving.replace(**{"moment.beta.first": 0.3}).moment.beta == Geometric(first=0.3, ratio=0.9)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: EMA(bias_correction="no"), TypeError, "EMA: bias_correction must be True or False, got 'no'"),
        (lambda: Recipe(name=5), TypeError, "a recipe's name is a text, got 5"),
        (lambda: Recipe(scope=5), ValueError, "unknown scope '5'"),
        (lambda: AbsoluteFloor(sigma=10**400), ValueError, "a number too large for a float"),
        (lambda: Monotone(ceiling=1e-5), ValueError, "ceiling must not lie below the inner floor, 0.01, got 1e-05"),
        (lambda: toml.loads("[moment]\nblock = 5"), ValueError, "the block's name must be a text, got 5"),
        (lambda: toml.loads("[moment]\nblock = 'number'"), ValueError, "unknown block 'number'"),
        (lambda: toml.loads("[moment]\nblock = 'os:getcwd'"), ValueError, "'os:getcwd' is not a block"),
        (lambda: toml.loads("[lr]\nfunction = 3"), ValueError, "lr: 3 is not the import path of a function"),
        (lambda: variants.get(5), ValueError, "unknown variant '5'"),
    ],
)
def test_more_wrong_input_is_explained(make, error, says):
    with pytest.raises(error, match=re.escape(says)):
        make()


def test_numbers_of_numpy_are_numbers():
    assert AbsoluteFloor(sigma=np.float32(0.5)).sigma == 0.5
    assert AbsoluteFloor(sigma=np.int64(2)).sigma == 2.0


def test_close_numbers_are_different_recipes():
    assert len(sandbox.ablate("apollo", **{"moment.beta": [1 - 1e-8, 1 - 1e-9, 0.9]})) == 3
    assert len(sandbox.ablate("apollo", lr=[0.01, 0.0100000001, 0.01])) == 2


def test_toml_keeps_tuples_and_refuses_what_it_has_no_word_for():
    made = variants.get("apollo").replace(rectifier=outside_blocks.Shaped(axes=(1, 2)))
    assert toml.loads(toml.dumps(made)) == made
    with pytest.raises(ValueError, match=r"Shaped\.power is None, for which TOML has no word"):
        toml.dumps(variants.get("apollo").replace(rectifier=outside_blocks.Shaped(power=None)))
    with pytest.raises(ValueError, match=r"Shaped.power = torch.float32 cannot be written as TOML"):
        toml.dumps(variants.get("apollo").replace(rectifier=outside_blocks.Shaped(power=torch.float32)))
