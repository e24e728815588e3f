"""One start of two ranks, whose results many tests look at."""

import os

import pytest
import torch
from filelock import FileLock

from tests.distributed.ranks import run


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Where the two ranks leave their checkpoints: one folder for all workers of the test run."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "checkpoints"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def two_ranks(checkpoints):
    """Their results, made by the first worker that asks."""
    kept = checkpoints / "results.pt"
    with FileLock(f"{kept}.lock"):
        if not kept.exists():
            torch.save(run(2, "core:everything", str(checkpoints)), kept)
    return torch.load(kept, weights_only=False)
