"""Seeded defects in pairs: each is located and named."""

import pytest
import torch

import sandbox
from sandbox import cli
from tests.equivalence import defects

PAIRS = [
    # right, wrong, what explains it, case, step
    ("Adam", "EpsInside", "ε inside the root, √(v̂ + ε)", "plain", 1),
    ("Adam", "EpsBeforeCorrection", "ε before the bias correction, (√v + ε)/√(1-β₂ᵗ)", "plain", 1),
    ("Adam", "EpsInsideBeforeCorrection", "ε inside the root, before the bias correction", "plain", 1),
    ("Adam", "NoCorrectionOfV", "no bias correction of v", "plain", 1),
    ("Adam", "NoCorrectionOfM", "no bias correction of m", "plain", 1),
    ("Adam", "NoCorrection", "no bias correction of m and v", "plain", 1),
    ("Adam", "Coupled", "decay in the gradient, g + γθ", "weight decay", 1),
    ("Adam", "DecayAfter", "decoupled decay after the step", "weight decay", 1),
    ("Adam", "DecayUnscaled", "decay that is not scaled by the rate, θ ← (1-γ)θ", "weight decay", 1),
    ("Adam", "DecayRelative", "decay scaled by the rate over the first one, θ ← (1-γη/η₁)θ", "weight decay", 1),
    ("Adam", "OtherBeta", "β₂ = 0.99", "plain", 2),
    ("Adam", "OddBeta", "β₂ = 0.9937", "plain", 2),
    ("Adam", "FirstRateKept", "the rate of its construction kept, whatever the schedule says", "a rate that changes", 1),
    ("Adam", "MissingIsZero", "missing gradients taken as zeros", "missing gradients", 2),
    ("Adam", "LookAhead", "Nesterov's look ahead, u = (β₁ m + (1-β₁) g)/(1-β₁ᵗ)", "plain", 1),
    ("AMSGrad", "AMSGradAfter", "AMSGrad, the correction before the maximum", "plain", 2),
    ("SGD", "SGDLookAhead", "Nesterov's look ahead, u = g + μ m with m = μ m + g", "plain", 1),
    ("SGD", "SGDDampened", "m = β m + (1-β) g", "plain", 1),
    ("SGD", "SGDRateInside", "the rate inside the buffer, v = μ v + η g", "a rate that changes", 2),
    ("Apollo", "ApolloOtherSign", "the sign of dᵀB d turned", "plain", 3),
    ("Apollo", "ApolloSmooth", "D = √(B² + σ²)", "plain", 2),
    ("Muon", "MuonRms", "orthogonal steps times 0.2 √max(m, n)", "plain", 1),
]


FAST = ("EpsInside", "OtherBeta", "MissingIsZero", "MuonRms")


@pytest.mark.parametrize(
    ("right", "wrong", "text", "case", "step"),
    [pytest.param(*row, id=row[1], marks=[] if row[1] in FAST else pytest.mark.slow) for row in PAIRS],
)
def test_defects_in_pairs(right, wrong, text, case, step):
    answer = sandbox.same(getattr(defects, right), getattr(defects, wrong))
    print(answer)
    assert not answer
    assert (answer.first.case.name, answer.first.step) == (case, step)
    assert answer.explanation.changes == [text]


def test_the_sign_of_y_is_not_seen_through_a_magnitude():
    """B is odd in y, and Apollo divides by |B|."""
    assert sandbox.same(defects.Apollo, defects.ApolloSign).same


def test_float32_inside_is_said():
    answer = sandbox.same(defects.Adam, defects.Single)
    assert answer.same
    assert answer.precision == "float32"
    assert "equal to rounding of float32" in str(answer)


@pytest.mark.parametrize(
    ("recipe", "right"), [("adamw", "Adam"), ("sgd", "SGD"), ("apollo", "Apollo"), ("nesterov", "SGDLookAhead")]
)
def test_recipes_equal_what_papers_print(recipe, right):
    answer = sandbox.same(recipe, getattr(defects, right), explain=False)
    assert answer.same
    assert answer.precision == "float64"


def test_numbers_that_differ_are_named():
    answer = sandbox.same("adamw", "AdamW(betas=(0.9, 0.95), eps=1e-6)")
    assert answer.explanation.changes == ["beta2 0.95, eps 1e-06"]
    assert answer.numbers == {"beta2": (0.999, 0.95), "eps": (1e-8, 1e-6)}
    assert "adamw equals AdamW(betas=(0.9, 0.95), eps=1e-6) with: beta2 0.95, eps 1e-06" in answer.sentence()


def test_two_differences_at_once():
    """One of the root, seen in the first case, and one of the decay, seen only where there is some."""
    both = type("Both", (defects.EpsInside, defects.DecayAfter), {})
    explanation = sandbox.same("adamw", both).explanation
    assert explanation.changes == ["ε inside the root, √(v̂ + ε)", "decoupled decay after the step"]


class Drawing(defects.Adam):
    def gradient(self, group, p, g):
        return g + 1e-3 * torch.randn_like(g)


class Raising(defects.Adam):
    def decay_first(self, group, s, p):
        if group["lr"] == 0:
            raise ZeroDivisionError("no rate")


def test_what_cannot_be_compared():
    with pytest.raises(ValueError, match="Drawing draws random numbers, so that two of its own runs differ"):
        sandbox.same("adamw", Drawing)
    with pytest.raises(ValueError, match="unknown variant 'adamv'; did you mean 'adam'"):
        sandbox.same("adamv", "AdamW")
    with pytest.raises(TypeError, match="an optimizer is a recipe, a class, or a text that names one, got 3"):
        sandbox.same("adamw", 3)
    with pytest.raises(ValueError, match="write literal keyword arguments"):
        sandbox.same("adamw", "AdamW(x)")
    answer = sandbox.same("adamw", Raising, explain=False)
    assert answer.first.case.name == "a rate that changes"
    assert "Raising: ZeroDivisionError: no rate" in str(answer)


def test_matrices_only():
    answer = sandbox.same(defects.Muon, defects.Muon)
    assert answer.tensors == ["matrix", "wide"]
    assert "not compared, as one of them does not train it: scalar, vector, kernel" in str(answer)


def test_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine_same.py").write_text("import torch\n\nclass Mine(torch.optim.AdamW):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["same", "adamw", "mine_same.py:Mine"]) == 0
    assert "adamw and mine_same.py:Mine: equal to rounding of float64: 11 cases of 12 steps" in capsys.readouterr().out
    assert cli.main(["same", "adamw", "mine_same.py:Mine(weight_decay=0.1)", "--short"]) == 1
    assert capsys.readouterr().out.strip().endswith("with: weight_decay 0.1")
    assert cli.main(["same", "adamw", "mine_same.py:Yours"]) == 2
