"""Callbacks that receive rows as they come:  sandbox.compare(…, callbacks=[CSV("rows.csv"), TensorBoard("logs")]).

A callback is any function of a row, a dict: run, variant, task, role, lr, seed, step, losses, metrics, …  It is called in the
calling process, once per row, during the runs (with an executor of the user's, when a run ends); whether a run diverged and
its test split are in its last row, before that None.  For MLflow or W&B:

    lambda row: mlflow.log_metric(f"{row['variant']}/{row['seed']}", row["train_loss"], step=row["step"])
    lambda row: wandb.log({f"{row['variant']}/{row['seed']}": row["train_loss"]}, step=row["step"])
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from sandbox.experiments.runs.store import SCHEMA
from sandbox.utils.literal import file_name


class CSV:
    """Appends rows to a file, in the columns of results.parquet; those of a run's end are empty before it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, row: dict[str, Any]) -> None:
        """Appends a row."""
        more = [name for name in row if name.startswith("validation_") and name not in SCHEMA]
        columns = [*SCHEMA, *more, *(name.replace("validation_", "test_", 1) for name in more)]
        is_new = not self.path.exists()
        with open(self.path, "a", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            if is_new:
                writer.writeheader()
            writer.writerow(row)


class TensorBoard:
    """Writes losses and metrics of final runs as scalars, one folder per run (needs the package tensorboard)."""

    def __init__(self, folder: str | Path, roles: tuple[str, ...] = ("final",)) -> None:
        self.folder, self.roles = Path(folder), roles
        self._writers: dict[str, Any] = {}

    def __call__(self, row: dict[str, Any]) -> None:
        """Writes a row; values that are not finite are left out."""
        from torch.utils.tensorboard import SummaryWriter

        if row["role"] not in self.roles:
            return
        key = row["run"]
        if key not in self._writers:
            name = f"{file_name(row['variant'])}-{row['seed']}-{key}"
            self._writers[key] = SummaryWriter(str(self.folder / name), flush_secs=10)
        for name, value in row.items():
            shown = name.startswith(("train_", "validation_", "test_")) or name == "floor_occupancy"
            if shown and isinstance(value, float) and abs(value) < float("inf"):
                self._writers[key].add_scalar(name, value, row["step"])
        if row["step"] == row["steps"]:
            self._writers.pop(key).close()

    def close(self) -> None:
        """Closes the files of runs that ended early."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
