"""Hybrid shards, tensor parallel, sequence-parallel norms, and fully_shard over tensor parallel, against one process.

float64, four steps, four ranks; 1e-12 as in test_equality.
"""

import pytest

from tests.distributed.meshes import HOW, NAMES
from tests.distributed.ranks import run


@pytest.mark.slow
def test_every_way_to_split_is_one_process():
    for found in run(4, "meshes:everything", seconds=900):
        assert isinstance(found, dict), found
        for key in ((kind, name) for kind in HOW for name in NAMES):
            assert isinstance(found[key], dict), (key, found[key])
            assert found[key]["error"] <= 1e-12, (key, found[key])
            assert found[key]["alike"], key
            assert found[key]["moved"] > 1e-5
