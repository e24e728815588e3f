"""`roles`: what each parameter of a task does in its network, and who would train it."""

from __future__ import annotations

import dataclasses

from tyro.conf import Positional

from sandbox.cli import interrupt, screen
from sandbox.utils import interrupts


@dataclasses.dataclass
class Roles(interrupt.Command):
    """Show the role of each parameter of a task (hidden, embedding, head, …), how it was found, and who trains it.

    Try:
      apollo-sandbox roles transformer-verses
      apollo-sandbox roles lstm-speeches --recipe muon
    """

    task: Positional[str]
    """A name, or module:attribute of a Task."""
    recipe: str = "muon"
    """A name, a TOML file, module:attribute, or a torch optimizer as "torch.optim:Muon"."""

    def main(self) -> int:
        """Prints a row per parameter, and a row per optimizer."""
        with interrupts.postponed():
            from sandbox import tasks
            from sandbox.experiments.runs.methods import method
            from sandbox.experiments.runs.trained import portions

        task, chosen = tasks.get(self.task), method(self.recipe)
        found, start = task.parameter_roles(), task.init(0)
        rows = [[name, "×".join(map(str, start[name].shape)) or "1", role.role, role.why] for name, role in found.items()]
        console = screen.console()
        screen.table(console, ["parameter", "shape", "role", "how it was found"], rows)
        total = sum(p.numel() for p in start.values())
        shares = portions(task, chosen) or [(chosen.name, "all", len(start), total)]
        lines = [[by, what, str(n), f"{size:,}", f"{100 * size / total:.1f} %"] for by, what, n, size in shares]
        screen.table(console, ["trained by", "what", "tensors", "parameters", "share"], lines)
        return 0
