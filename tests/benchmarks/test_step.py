"""A whole step, gathering of gradients included, against torch.optim.AdamW(fused=True) in the same process.

    make bench

Contenders take turns; the table shows medians of 40 rounds, on all cores and on one.  pytest-benchmark keeps the rounds and, in `extra_info`, the rows.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.benchmarks.contenders import SHAPES
from tests.benchmarks.measure import Interleaved, table


@pytest.fixture(params=[os.cpu_count() or 1, 1], ids=["all cores", "one core"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", SHAPES)
def test_step(shape, threads, benchmark, capsys):
    run = Interleaved(shape)
    benchmark.pedantic(run.round, rounds=40, warmup_rounds=5)
    benchmark.extra_info["shape"] = shape
    benchmark.extra_info["parameters"] = run.count
    benchmark.extra_info["threads"] = threads
    bandwidth = benchmark.extra_info["copy_bytes_a_second"] = run.bandwidth()
    rows = benchmark.extra_info["rows"] = run.rows()
    run.close()
    with capsys.disabled():
        memory = f"memory copies {bandwidth / 1e9:.0f} GB/s"
        print(
            f"\n\n{shape}: {len(SHAPES[shape])} tensors, {run.count / 1e6:.2f} M parameters; {threads} threads, {memory}\n{table(rows)}"
        )


FIRST = """
import json, sys, time, torch
import sandbox
from tests.benchmarks.contenders import parameters
seconds = {}
for shape in ("resnet110", "transformer"):
    params = parameters(shape)
    start = time.perf_counter()
    sandbox.Optimizer(params, sys.argv[1], backend="compiled", nonfinite="pass").step()
    seconds[shape] = time.perf_counter() - start
print(json.dumps(seconds))
"""


@pytest.mark.parametrize("recipe", ["apollo", "scale-invariant", "apollow", "adamw"])
def test_first_step(recipe, benchmark, tmp_path, capsys):
    """Seconds of the first step: ResNet-110, then the Transformer (its large tensors compile their own graph), with a cold cache
    and, in another process, with a warm one."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": str(os.cpu_count())}
    found = []

    def process():
        command = [sys.executable, "-c", FIRST, recipe]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        found.append(json.loads(done.stdout))

    benchmark.pedantic(process, rounds=2)
    benchmark.extra_info["first_step_s"] = {"cold": found[0], "warm": found[1]}
    with capsys.disabled():
        print(f"\nfirst step of {recipe}, seconds: cold {found[0]}, warm {found[1]}")
