"""Paths by which notebooks and earlier versions import the checks."""

import importlib

import pytest

import theory_checks


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("theory_checks.frozen", "theory_checks.claims.momentum_worst_case"),
        ("theory_checks.claims.frozen", "theory_checks.claims.momentum_worst_case"),
        ("theory_checks.premises", "theory_checks.claims.premises"),
        ("theory_checks.rates", "theory_checks.open_questions.rates"),
    ],
)
def test_old_paths(old, new):
    assert importlib.import_module(old) is importlib.import_module(new)


def test_names_that_notebooks_import():
    for name in ("certificates", "counterexamples", "premises", "problems", "questions", "rates", "record", "regret", "frozen"):
        assert getattr(theory_checks, name) is not None
