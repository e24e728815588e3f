"""Backends on tensors of a few entries, as they run on large ones."""

import pytest

from sandbox.backends import pieces, places


@pytest.fixture
def both_ways(monkeypatch):
    """Arena and large tensors in each case, in pieces of a row or eight entries."""
    monkeypatch.setattr(places, "LARGE", {"cpu": 10, "cuda": 10})
    monkeypatch.setattr(pieces, "PIECE", {"cpu": 64, "cuda": 64})
