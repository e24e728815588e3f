"""The examples, as a user starts them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def torchrun(folder, steps, processes):
    """The losses that the example prints, by step."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", str(HERE / "fsdp2.py"), "--folder", str(folder), "--every", "4"]
    root = str(HERE.parents[1])
    done = subprocess.run(
        [*command, "--steps", str(steps)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss (\S+)", done.stdout)}


@pytest.mark.slow
def test_fsdp2_goes_on_from_its_checkpoint(tmp_path):
    """float32: interrupted after 4 of 8 steps and resumed, on two processes bit for bit, on one to the rounding of its sums."""
    for name in ("whole", "parts", "fewer"):
        (tmp_path / name).mkdir()
    whole = torchrun(tmp_path / "whole", 8, 2)
    first = torchrun(tmp_path / "parts", 4, 2)
    second = torchrun(tmp_path / "parts", 8, 2)
    assert sorted(whole) == [4, 8]
    assert first[4] == whole[4]
    assert second == {8: whole[8]}
    torchrun(tmp_path / "fewer", 4, 2)
    assert torchrun(tmp_path / "fewer", 8, 1)[8] == pytest.approx(whole[8], rel=1e-4)
