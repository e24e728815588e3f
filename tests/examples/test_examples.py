"""The examples, as a user starts them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def torchrun(file, folder, steps, processes):
    """Its exit code, the losses that it prints, by step, and what torchrun says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [str(HERE / file), "--folder", str(folder), "--every", "4", "--steps", str(steps)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss (\S+)", done.stdout)}
    return done.returncode, losses, done.stderr


@pytest.mark.slow
def test_fsdp2_goes_on_from_its_checkpoint(tmp_path):
    """float32: a rank killed with -9 in step 6 of 8, and the command given again: bit for bit the uninterrupted run; continued on
    one process, to the rounding of its sums."""
    code, whole, said = torchrun("fsdp2.py", tmp_path / "whole", 8, 2)
    assert code == 0, said[-3000:]
    assert sorted(whole) == [4, 8]
    code, killed, said = torchrun("killed.py", tmp_path / "killed", 8, 2)
    assert code != 0
    assert re.search(r"exitcode\s*: -9", said), said[-3000:]
    shutil.copytree(tmp_path / "killed", tmp_path / "one")
    for processes, folder, tolerance in ((2, "killed", 0.0), (1, "one", 1e-5)):
        code, rest, said = torchrun("fsdp2.py", tmp_path / folder, 8, processes)
        assert code == 0, said[-3000:]
        assert killed | rest == pytest.approx(whole, rel=tolerance, abs=0.0)
        assert sorted(rest) == [8]
