"""A recipe as text, LaTeX and TOML, and its fingerprint."""

import re
import subprocess
import sys

import pytest
import torch

import variants
from sandbox import blocks
from sandbox.blocks import (
    EMA,
    Box,
    ClipGlobalNorm,
    L2Decay,
)
from sandbox.forms import toml
from sandbox.recipe import Recipe
from sandbox.schedules import Geometric, InverseSquareRoot
from tests import outside_blocks


def test_text_is_the_algorithm_with_its_numbers():
    assert str(variants.get("apollo-l2")).splitlines() == [
        "apollo-l2: 2 state elements per parameter (d recomputed from it), scope parameter",
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
        equation = block.equation(path.split(".")[0], latex=True)
        if isinstance(block, blocks.Successive | blocks.Standard | blocks.Last):
            continue
        output = "p_t" if recipe.adjust else recipe.solve.symbol[1]
        assert (equation.replace("m_t/D_t", output) if path == "decay" else equation) in shown
    assert shown.count("$$") == 2 * (1 + len(recipe.inner))
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


def test_toml_keeps_tuples_and_refuses_what_it_has_no_word_for():
    made = variants.get("apollo").replace(rectifier=outside_blocks.Shaped(axes=(1, 2)))
    assert toml.loads(toml.dumps(made)) == made
    with pytest.raises(ValueError, match=r"Shaped\.power is None, for which TOML has no word"):
        toml.dumps(variants.get("apollo").replace(rectifier=outside_blocks.Shaped(power=None)))
    with pytest.raises(ValueError, match=r"Shaped.power = torch.float32 cannot be written as TOML"):
        toml.dumps(variants.get("apollo").replace(rectifier=outside_blocks.Shaped(power=torch.float32)))


def test_toml_keeps_a_plain_block_inside_another():
    recipe = variants.get("sdlbfgs").replace(solve=blocks.UnitLength(inner=blocks.Divide()))
    assert toml.loads(toml.dumps(recipe)) == recipe


def test_what_is_done_with_tensors_of_four_axes_is_shown():
    """A kernel's average, and how such a tensor becomes a matrix."""
    shown = str(variants.get("adahessian-spatial"))
    assert "h = z ⊙ Hz (4-d: mean of |z ⊙ Hz| over a kernel);" in shown
    assert "kernel" not in str(variants.get("adahessian"))
    assert r"\operatorname{mean}_{\text{kernel}} |z \odot H z|" in variants.get("adahessian-spatial")._repr_markdown_()
    for name in ("soap", "muon", "shampoo"):
        assert "of an (m, n) matrix, n over all further axes" in str(variants.get(name))
