"""`study`: the paper's experiments, listed, run and reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from sandbox.cli import interrupt, screen


@dataclasses.dataclass
class Study(interrupt.Command):
    """The paper's experiments: list them, run one in a size, report the results.

    Sizes: smoke (seconds, with packaged data), cpu (minutes to half an hour), gpu, and paper (its exact settings, on folders of
    full data). Runs that are there already are not repeated.

    Try:
      apollo-sandbox study list
      apollo-sandbox study run language --tier smoke
      apollo-sandbox study run F6 --tier cpu --jobs 2
      apollo-sandbox study report F6 --tier cpu
      apollo-sandbox study report all --tier cpu --out notebooks/studies
    """

    do: Positional[Literal["list", "run", "report"]]
    """What to do."""
    name: Positional[str] = "all"
    """A study's name or key, as study list shows them, or all."""
    tier: Literal["smoke", "cpu", "gpu", "paper"] = "smoke"
    """The size."""
    parts: tuple[str, ...] = ()
    """Some of its parts only."""
    seeds: int | None = None
    """Another number of seeds."""
    device: str = "cpu"
    """Where networks train."""
    jobs: int = 1
    """Processes side by side."""
    out: Path = Path("results/studies")
    """Folder of runs and tables."""
    write: bool = False
    """With report all: keep tables, pictures and claims beside the rows."""

    def main(self) -> int:
        """Lists, runs or reports."""
        return {"list": self._list, "run": self._run, "report": self._report}[self.do]()

    def _list(self) -> int:
        from sandbox import studies
        from sandbox.studies.verdicts import claims

        rows = [
            [s.key, s.name, ", ".join(s.tiers), " ".join(map(str, claims.numbers(s.key))), s.question]
            for s in studies.all_studies()
        ]
        screen.table(screen.console(), ["study", "name", "tiers", "claims", "question"], rows)
        return 0

    def _run(self) -> int:
        from sandbox import studies
        from sandbox.experiments.settings import Options
        from sandbox.studies.run import run

        console = screen.console()
        chosen = studies.all_studies() if self.name == "all" else [studies.get(self.name)]
        chosen = [s for s in chosen if self.name != "all" or self.tier in s.tiers]
        screen.folder(self.out)
        for study in chosen:
            with screen.progress(console) as progress:
                path = run(
                    study, self.tier, self.out, parts=self.parts or None, seeds=self.seeds, jobs=self.jobs,
                    options=Options(device=self.device), progress=progress,
                )  # fmt: skip
            screen.say(console, f"{study.key} {study.name}: {path}")
        return 0

    def interrupted(self) -> str:
        """Returns what to say after Ctrl-C."""
        return interrupt.resumable(self.out, "*/*/*/runs/*.json", what="runs")

    def _report(self) -> int:
        from sandbox import studies
        from sandbox.studies import report

        console = screen.console()
        rows = report.load(self.out, self.tier)
        if self.name != "all":
            study = studies.get(self.name)
            if study.key not in rows:
                raise ValueError(
                    f"no rows of {study.key} in {self.out}: apollo-sandbox study run {study.name} --tier {self.tier}"
                )
            screen.say(console, f"{study.key} {study.name}. {study.question}\n{study.note}")
            for title, head, body in report.tables(study, rows[study.key]):
                screen.say(console, f"\n{title}")
                screen.table(console, head, body)
            return 0
        if not rows:
            raise ValueError(f"no rows of the {self.tier} tier in {self.out}: apollo-sandbox study run all --tier {self.tier}")
        for title, head, body in report.claims_tables(rows):
            screen.say(console, title)
            screen.table(console, head, body)
        screen.say(console, ", ".join(f"{n} {verdict}" for verdict, n in report.counts(rows).items() if n))
        if self.write:
            report.write(self.out, self.tier)
        return 0
