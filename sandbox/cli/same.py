"""`same`: whether two optimizers make the same steps."""

from __future__ import annotations

import dataclasses
import sys

from tyro.conf import Positional

from sandbox.cli import interrupt
from sandbox.utils import interrupts


@dataclasses.dataclass
class Same(interrupt.Command):
    """Say whether two optimizers make the same steps; if not, where they part, and which known difference explains it.

    Each is a variant's name, a TOML file, a class of torch.optim (AdamW), module:Class or file.py:Class, also with arguments.
    Both have the same rate, and otherwise the numbers that they declare.

    Try:
      apollo-sandbox same adamw AdamW
      apollo-sandbox same adamw 'pytorch_optimizer:AdaBelief(eps=1e-8)'
      apollo-sandbox same apollo mine.py:Apollo

    Exit code 0 where they are the same, 1 where they differ, 2 for bad usage.
    """

    one: Positional[str]
    """An optimizer."""
    two: Positional[str]
    """Another one."""
    lr: float | None = None
    """The rate of both; default the first one's own."""
    steps: int = 12
    """Steps of each case."""
    explain: bool = True
    """Try known differences where the steps differ."""
    seconds: float = 60.0
    """How long to try them, in seconds of the processor."""
    short: bool = False
    """Print one line."""

    def main(self) -> int:
        """Prints the answer."""
        with interrupts.postponed():
            from sandbox.equivalence import same

        answer = same(self.one, self.two, lr=self.lr, steps=self.steps, explain=self.explain, seconds=self.seconds)
        sys.stdout.write(f"{answer.sentence() if self.short else answer}\n")
        return 0 if answer else 1
