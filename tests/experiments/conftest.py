"""Pictures of comparisons, each a seventh of a second."""

import pytest

from sandbox.experiments.reports import comparison


@pytest.fixture
def drawn():
    """For a test that looks at them."""


@pytest.fixture(autouse=True)
def _without_pictures(request, monkeypatch):
    """`make test` draws where a test looks at pictures; `make test-all` draws them all."""
    if request.config.option.markexpr == "not slow" and "drawn" not in request.fixturenames:
        monkeypatch.setattr(comparison, "pictures", lambda *_: {"png": b"", "svg": b""})
