"""The paper tier holds the numbers of the paper's tables, written here a second time."""

from __future__ import annotations

import pytest

from sandbox import studies, tasks
from sandbox.studies import arms

# name: (η, γ, form, ε); section 2 of the facts
CIFAR = {
    "sgd": (0.1, 5e-4, "l2", None),
    "adam": (0.001, 2.5e-1, "decoupled", 1e-8),
    "radam": (0.001, 2.5e-1, "decoupled", 1e-8),
    "adabelief": (0.001, 2.5e-1, "decoupled", 1e-8),
    "adahessian": (0.15, 1e-3, "decoupled", 1e-2),
    "apollo": (0.01, 2.5e-4, "l2", 1e-4),
    "apollow": (0.01, 2.5e-2, "decoupled", 1e-4),
    "adam*": (0.001, 5e-4, "decoupled", 1e-8),
    "radam*": (0.001, 5e-4, "decoupled", 1e-8),
    "frozen": (0.01, 2.5e-4, "l2", None),  # Apollo's
    "sgd-w": (0.1, 2.5e-4, "l2", None),  # (η/σ)(1-β) of Apollo, with its γ
}
IMAGENET = {
    "sgd": (0.1, 1e-4),
    "adam": (0.001, 1e-1),
    "radam": (0.001, 1e-1),
    "adabelief": (0.001, 1e-1),
    "apollo": (0.01, 1e-4),
    "apollow": (0.01, 1e-2),
    "adam*": (0.001, 1e-4),
    "radam*": (0.001, 1e-4),
}


def part(key, name=None):
    found = [p for p in studies.get(key).parts("paper") if name in (None, p.name)]
    return found[0]


def numbers(arm):
    """(η, γ, form, ε) as the arm's recipe has them."""
    recipe = arm.recipe()
    held = recipe.hyperparameters()
    decays = {name: value for name, value in held.items() if name.endswith("weight_decay") and value}
    form = "l2" if any(name.startswith("gradient") for name in decays) else "decoupled"
    eps = held.get("curvature.eps") if arm.method == "apollo" else held.get("rectifier.eps")
    (gamma,) = decays.values()
    return recipe.lr, gamma, form, eps


def test_cifar10():
    for name, epochs, updates in (("milestones", 164, 64_124), ("cosine", 200, 78_200)):
        found = part("F2", name)
        assert {arm.name: numbers(arm) for arm in found.arms} == CIFAR
        assert {arm.name: arm.warmup for arm in found.arms if arm.warmup} == dict.fromkeys(
            ("apollo", "apollow", "adahessian", "frozen", "sgd-w"), 500
        )
        task = tasks.get(found.task, **found.options)
        assert (task.epochs, task.batch_size, task.depth, found.seeds) == (epochs, 128, 110, 5)
        assert updates == 391 * epochs
    assert part("F2", "milestones").rate.updates(64_124) == (80 * 391, 120 * 391)
    assert part("F2", "cosine").rate.kind == "cosine"


def test_momenta_and_averages():
    held = {arm.name: arm.recipe().hyperparameters() for arm in part("F2").arms}
    assert held["sgd"]["moment.momentum"] == held["sgd-w"]["moment.momentum"] == 0.9
    for name in ("adam", "radam", "adabelief", "adahessian"):
        assert (held[name]["moment.beta"], held[name]["curvature.beta"]) == (0.9, 0.999)
    for name in ("apollo", "apollow"):
        assert (held[name]["moment.beta"], held[name]["rectifier.sigma"]) == (0.9, 0.01)
    assert held["adabelief"]["curvature.eps"] == 1e-8


def test_imagenet():
    for name in ("milestones", "cosine"):
        found = part("F3", name)
        task = tasks.get(found.task)
        assert (task.epochs, task.batch_size) == (120, 256)
        assert {a.name: numbers(a)[:2] for a in found.arms if a.name in IMAGENET} == IMAGENET
    assert part("F3", "milestones").rate.updates(600_600) == (200_200, 400_400)


def test_rates_and_decays():
    found = {arm.name: (arm.lr, arm.weight_decay) for arm in part("F4").arms}
    for method in ("sgd", "adam", "radam", "apollo"):
        lr, gamma, *_ = CIFAR[method]
        assert [found[f"{method} ×{a:g}"] for a in (0.2, 1, 2, 10)] == [
            pytest.approx((a * lr, gamma / a)) for a in (0.2, 1, 2, 10)
        ]
    decays = {arm.name: arm.weight_decay for arm in part("F5").arms}
    assert [decays[f"sgd γ×{a:g}"] for a in (0.2, 0.6, 1, 1.4, 1.8)] == pytest.approx([1e-4, 3e-4, 5e-4, 7e-4, 9e-4])
    assert [decays[f"adabelief γ×{a:g}"] for a in (0.2, 0.6, 1, 1.4, 1.8)] == pytest.approx([0.05, 0.15, 0.25, 0.35, 0.45])
    assert [decays[f"apollo γ×{a:g}"] for a in (0.2, 0.6, 1, 1.4, 1.8)] == pytest.approx([5e-5, 1.5e-4, 2.5e-4, 3.5e-4, 4.5e-4])


def test_one_billion_words():
    found = part("F6")
    assert {arm.name: arm.lr for arm in found.arms} == {
        "sgd": 0.5, "adam": 1e-3, "radam": 1e-3, "adabelief": 1e-3, "apollo": 0.1, "frozen": 0.1, "sgd-w": 1.0,
    }  # fmt: skip
    for arm in found.arms:
        held = arm.recipe().hyperparameters()
        assert arm.recipe().structure()["gradient"] is not None
        assert held["gradient.0.max_norm"] == 1.0
        assert not any(name.endswith("weight_decay") and value for name, value in held.items())
    held = {arm.name: arm.recipe().hyperparameters() for arm in found.arms}
    assert held["adabelief"]["curvature.eps"] == held["adabelief"]["rectifier.eps"] == 1e-12
    assert held["adam"]["rectifier.eps"] == 1e-8
    task = tasks.get(found.task)
    assert (task.sequences, task.window, task.vocabulary, task.steps) == (128, 20, 793_471, 20 * 312_500)
    assert found.rate.updates(task.steps) == (12 * 312_500, 18 * 312_500)


def test_wmt14():
    found = part("F7")
    # name: (η, γ, form, warm-up)
    expected = {
        "sgd": (0.1, 1e-6, "l2", 1000),
        "adam": (5e-4, 1e-4, "decoupled", 4000),
        "radam": (5e-4, 1e-4, "decoupled", 0),
        "adabelief": (5e-4, 1e-4, "decoupled", 1000),
        "apollo": (0.1, 1e-8, "l2", 1000),
        "frozen": (0.1, 1e-8, "l2", 1000),
        "sgd-w": (1.0, 1e-8, "l2", 1000),
    }
    assert {a.name: (*numbers(a)[:3], a.warmup) for a in found.arms} == expected
    held = {arm.name: arm.recipe().hyperparameters() for arm in found.arms}
    assert all(numbers["gradient.0.max_norm"] == 1.0 for numbers in held.values())
    assert [held[name]["curvature.beta"] for name in ("adam", "radam", "adabelief")] == [0.98, 0.999, 0.999]
    assert {arm.name: arm.rate.kind for arm in found.arms if arm.rate} == {"adam": "inverse-sqrt"}
    assert found.rate.updates(500_000) == (300_000, 450_000)
    task = tasks.get(found.task)
    assert (task.tokens, task.smoothing, task.steps) == (65_536, 0.1, 500_000)


def test_clipping():
    found = [{arm.name: arm.clip for arm in p.arms} for p in studies.get("F9").parts("paper")]
    assert found == [
        {"global 1": ("global", 1.0), "parameter 0.5": ("parameter", 0.5)},
        {"global 1": ("global", 1.0), "parameter 0.1": ("parameter", 0.1)},
    ]
    recipe = studies.get("F9").parts("paper")[1].arms[1].recipe()
    assert type(recipe.gradient[0]).__name__ == "ClipParameterNorm"


def test_toy():
    found = part("F1")
    (apollo,) = (arm for arm in found.arms if arm.name == "apollo")
    assert (apollo.lr, apollo.warmup) == (0.001, 10)
    (sdlbfgs,) = (arm.recipe() for arm in found.arms if arm.name == "sdlbfgs m=100")
    assert (sdlbfgs.lr, sdlbfgs.solve.inner.memory) == (0.1, 100)
    task = tasks.get(found.task)
    assert (task.batch_size, task.epochs) == (64, 50)
    assert arms.TOY_RATES == (0.2, 0.1, 0.05, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002)
    assert found.rate.factor**50 == pytest.approx(0.077, abs=5e-4)


def test_warmup():
    lengths = {arm.name: arm.warmup for arm in part("F11").arms}
    assert {lengths[f"{m} w=500"] for m in ("apollo", "sgd", "adam", "radam", "adabelief", "adahessian")} == {500}
    assert {lengths[f"{m} w=0"] for m in ("apollo", "adahessian")} == {0}
