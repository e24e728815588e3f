"""The example with an accident: rank 1 is killed before its sixth step."""

import os
import runpy
import signal
from pathlib import Path

import sandbox


class Mortal(sandbox.Optimizer):
    made = 0

    def step(self, closure=None):
        Mortal.made += 1
        if Mortal.made == 6 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(closure)


sandbox.Optimizer = Mortal
runpy.run_path(str(Path(__file__).with_name("fsdp2.py")), run_name="__main__")
