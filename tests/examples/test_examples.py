"""The examples, as a user starts them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def torchrun(file, folder, steps, processes):
    """The losses that it prints, by step, and what torchrun says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["--max-restarts=1", str(HERE / file), "--folder", str(folder), "--every", "4", "--steps", str(steps)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss (\S+)", done.stdout)}, done.stderr


@pytest.mark.slow
def test_fsdp2_goes_on_from_its_checkpoint(tmp_path):
    """float32: a rank killed with -9 in step 6 of 8, and all resumed: bit for bit the uninterrupted run; continued on one
    process, to the rounding of its sums."""
    whole, _ = torchrun("fsdp2.py", tmp_path / "whole", 8, 2)
    killed, said = torchrun("killed.py", tmp_path / "killed", 8, 2)
    assert sorted(whole) == [4, 8]
    assert "exitcode  : -9" in said or "exitcode: -9" in said
    assert killed == whole
    for checkpoint in (tmp_path / "whole" / "8").iterdir():
        checkpoint.unlink()
    fewer, _ = torchrun("fsdp2.py", tmp_path / "whole", 8, 1)
    assert sorted(fewer) == [8]  # from step 4 on
    assert fewer[8] == pytest.approx(whole[8], rel=1e-5)
