"""Backends on tensors of a few entries, as they run on large ones."""

import pytest

from sandbox.backends.arena import leaves
from sandbox.backends.inductor import kernels
from sandbox.backends.recorded import program


@pytest.fixture
def both_ways(monkeypatch):
    """Arena and large tensors in each case, in pieces of a row or eight entries."""
    monkeypatch.setattr(leaves, "LARGE", {"cpu": 10, "cuda": 10})
    monkeypatch.setattr(program, "PIECE", {"cpu": 64, "cuda": 64})


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """An empty cache for compiled steps, and none known to this process."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernels, "_COMPILED", {})
