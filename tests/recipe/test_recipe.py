"""Composing recipes: what fits, what is refused, names and numbers."""

import dataclasses
import re

import numpy as np
import pytest
import torch
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
)
from sandbox.forms import toml
from sandbox.recipe import Recipe
from sandbox.schedules import Geometric


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
            assert made.equation(slot), name
            assert made.equation(slot, latex=True) or isinstance(made, blocks.Schedule), name


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


def test_words_of_state():
    expected = {"apollo": 2, "apollow": 2, "belief": 2, "scale-invariant": 3, "hessian-ema": 3, "monotone": 3}
    expected |= {"sgd": 1, "adam": 2, "adamw": 2, "amsgrad": 3, "adagrad": 1, "rmsprop": 1, "adadelta": 2, "adahessian": 2}
    assert {name: variants.get(name).analysis.state_elements for name in expected} == expected
    # d is stored only where it cannot be computed again
    assert not variants.get("apollow").analysis.stores_direction
    assert variants.get("apollow").replace(projection=Box()).analysis.stores_direction
    assert variants.get("apollow").replace(projection=Box()).analysis.state_elements == 3
    assert not variants.get("apollo").replace(projection=Box()).analysis.stores_direction


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
