"""A step on shards of two ranks, check for NaN included, against torch.optim.AdamW(fused=True) on the same DTensors."""

import pytest

from tests.benchmarks.shards import BASE
from tests.distributed.ranks import run


@pytest.mark.parametrize("shape", ["resnet110", "transformer"])
def test_shards(shape, benchmark, capsys):
    found = benchmark.pedantic(run, args=(2, "tests.benchmarks.shards:medians", shape, 30), rounds=1)[0]
    rows = benchmark.extra_info["rows"] = {name: {"ms": ms, "ratio": ms / found[BASE]} for name, ms in found.items()}
    benchmark.extra_info["shape"] = shape
    with capsys.disabled():
        print(f"\n\n{shape} on two ranks")
        for name, row in rows.items():
            print(f"  {name:28s}{row['ms']:9.2f} ms{row['ratio']:7.2f}")
