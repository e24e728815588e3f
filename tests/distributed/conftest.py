"""One start of two ranks, whose results many tests look at."""

import pytest

from tests.distributed.ranks import run


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Where the two ranks leave their checkpoints."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def two_ranks(checkpoints):
    return run(2, "core:everything", str(checkpoints))
