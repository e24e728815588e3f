"""`calibrate`: the statistics of `compare`, tested where the truth is known."""

from __future__ import annotations

import dataclasses

from tyro.conf import Positional

from sandbox.cli import interrupt, screen
from sandbox.utils import interrupts

FAILED = 1  # exit code where a stated rate does not hold


@dataclasses.dataclass
class Calibrate(interrupt.Command):
    """Check the error rate and the power that compare states, on comparisons whose truth is known.

    Trains one recipe under two names, on seeds that no two runs share: every difference found is an error, and 5 % of the
    comparisons may have one, also after Holm over four. Then adds a shift that compare says it finds with 80 % power.
    Exit code 1 where errors are more frequent, or the power is another, than stated (exact 95 % binomial intervals).

    Try:
      apollo-sandbox calibrate
      apollo-sandbox calibrate --tuned
      apollo-sandbox calibrate apollo --task softmax-digits --comparisons 200 --pairs 6
    """

    recipe: Positional[str] = "adamw"
    """A name, a TOML file, or module:attribute."""
    task: str = "ridge-diabetes"
    """A name from apollo-sandbox tasks, module:attribute, or file.py:attribute."""
    comparisons: int = 400
    """How many, a multiple of four."""
    pairs: int = 10
    """Paired seeds of each."""
    steps: int = 10
    """Updates a run."""
    seed: int = 0
    """The first of the runs' seeds."""
    tuned: bool = False
    """Let each of the two choose its rate as compare does, on seeds of its own (about a minute)."""

    def main(self) -> int:
        """Runs the comparisons and shows the rates."""
        with interrupts.postponed():
            from sandbox.experiments.calibrate import differences, judge
            from sandbox.experiments.calibrate_tuning import tuned_differences

        console = screen.console()
        options = {name: getattr(self, name) for name in ("comparisons", "pairs", "steps", "seed")}
        choices = None
        with screen.progress(console, "searches" if self.tuned else "member steps") as progress:

            def training(done: int, total: int) -> None:
                progress(done, total, "training")

            if self.tuned:
                whole = tuned_differences(self.recipe, self.task, progress=training, **options)
                paired, choices = whole.differences, whole.choices
            else:
                paired = differences(self.recipe, self.task, progress=training, **options)
        with screen.progress(console, "comparisons") as progress:
            result = judge(paired, lambda done, total: progress(done, total, "comparing"), choices)
        screen.table(console, *result.table())
        for line in result.notes():
            screen.say(console, line)
        return 0 if result.holds else FAILED

    def interrupted(self) -> str:
        """Returns what to say after Ctrl-C: nothing is written."""
        return "Interrupted; nothing is kept."
