"""Callbacks that receive rows as they come:  sandbox.compare(…, callbacks=[CSV("rows.csv"), WandB("project")]).

A callback is any function of a row, a dict: run, variant, task, role, lr, seed, step, losses, metrics, …  It is called in the
calling process, once per row, during the runs (with an executor of the user's, when a run ends); whether a run diverged and
its test split are in its last row, before that None.

`TensorBoard`, `WandB`, `MLflow` and `Trackio` make a run of theirs for each run here: grouped by variant, with the variant's
numbers, and its losses, metrics, gradient evaluations and floor occupancy over updates.  Those of tuning are left out unless
`roles` asks for them.  Each needs its package, which is imported at the first row.
"""

from __future__ import annotations

import csv
import importlib
import math
import time
from pathlib import Path
from typing import Any

from sandbox.experiments.runs.store import SCHEMA
from sandbox.utils.literal import file_name

CONFIGURATION = ("variant", "task", "role", "lr", "seed", "steps", "warmup", "schedule", "numbers", "options", "way")
MEASURED = ("train_", "validation_", "test_", "seconds_a_step", "gradients", "floor_occupancy")


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


class Tracker:
    """One run of a tracker per run.  Subclasses start one, log to it and finish it.

    roles: of the runs that are tracked, "final" and "tuning".
    """

    install = ""  # what pip installs

    def __init__(self, roles: tuple[str, ...] = ("final",)) -> None:
        self.roles = roles
        self.runs: dict[str, Any] = {}

    def start(self, row: dict[str, Any], name: str, configuration: dict[str, Any]) -> Any:
        """Returns the tracker's run for that of a first row."""
        raise NotImplementedError

    def log(self, run: Any, values: dict[str, float], step: int) -> None:
        """Logs what was measured after `step` updates."""
        raise NotImplementedError

    def finish(self, run: Any, diverged: bool | None) -> None:
        """Ends a run.  diverged: None where it did not come to its end."""
        raise NotImplementedError

    def module(self, name: str) -> Any:
        """Imports a module of the tracker's package; raises ModuleNotFoundError that says how to install it."""
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{type(self).__name__} needs a package: pip install {self.install} ({error})") from error

    def __call__(self, row: dict[str, Any]) -> None:
        """Logs a row; values that are not finite are left out."""
        if row["role"] not in self.roles:
            return
        key = row["run"]
        if key not in self.runs:
            configuration = {name: row[name] for name in CONFIGURATION if name in row}
            self.runs[key] = self.start(row, f"{row['variant']}-{row['seed']}", configuration)
        measured = {k: v for k, v in row.items() if k.startswith(MEASURED) and isinstance(v, int | float)}
        self.log(self.runs[key], {k: float(v) for k, v in measured.items() if math.isfinite(v)}, row["step"])
        if row["diverged"] is not None:
            self.finish(self.runs.pop(key), row["diverged"])

    def close(self) -> None:
        """Ends the runs that were interrupted."""
        for run in self.runs.values():
            self.finish(run, None)
        self.runs.clear()


class TensorBoard(Tracker):
    """Writes scalars, one folder per run."""

    install = "'apollo-sandbox[tensorboard]'"

    def __init__(self, folder: str | Path, roles: tuple[str, ...] = ("final",)) -> None:
        super().__init__(roles)
        self.folder = Path(folder)

    def start(self, row: dict[str, Any], name: str, configuration: dict[str, Any]) -> Any:
        """Returns a writer."""
        folder = self.folder / f"{file_name(row['variant'])}-{row['seed']}-{row['run']}"
        return self.module("torch.utils.tensorboard").SummaryWriter(str(folder), flush_secs=10)

    def log(self, run: Any, values: dict[str, float], step: int) -> None:
        """Adds the scalars."""
        for name, value in values.items():
            run.add_scalar(name, value, step)

    def finish(self, run: Any, diverged: bool | None) -> None:
        """Closes the file."""
        run.close()


class WandB(Tracker):
    """Weights & Biases: group = variant, job type = role; settings go to `wandb.init`.  WANDB_MODE=offline needs no network."""

    install = "wandb"

    def __init__(self, project: str, roles: tuple[str, ...] = ("final",), **settings: Any) -> None:
        super().__init__(roles)
        self.project, self.settings = project, settings

    def start(self, row: dict[str, Any], name: str, configuration: dict[str, Any]) -> Any:
        """Returns a run of its own, beside others that are open."""
        return self.module("wandb").init(
            project=self.project, group=row["variant"], job_type=row["role"], name=name, id=row["run"],
            config=configuration, reinit="create_new", **self.settings,
        )  # fmt: skip

    def log(self, run: Any, values: dict[str, float], step: int) -> None:
        """Logs the values."""
        run.log(values, step=step)

    def finish(self, run: Any, diverged: bool | None) -> None:
        """Ends the run, with "diverged" in its summary."""
        run.summary["diverged"] = diverged
        run.finish()


class MLflow(Tracker):
    """MLflow, by its client, which knows no active run.  uri: as "sqlite:///mlflow.db", or a server's address."""

    install = "mlflow"

    def __init__(self, experiment: str, uri: str = "sqlite:///mlflow.db", roles: tuple[str, ...] = ("final",)) -> None:
        super().__init__(roles)
        self.experiment, self.uri = experiment, uri
        self.client: Any = None

    def start(self, row: dict[str, Any], name: str, configuration: dict[str, Any]) -> Any:
        """Returns the identity of a new run, with variant, role and run as tags."""
        if self.client is None:
            self.client = self.module("mlflow").MlflowClient(self.uri)
        known = self.client.get_experiment_by_name(self.experiment)
        experiment = self.client.create_experiment(self.experiment) if known is None else known.experiment_id
        tags = {name: row[name] for name in ("variant", "role", "run")}
        run = self.client.create_run(experiment, run_name=name, tags=tags).info.run_id
        param = self.module("mlflow.entities").Param
        self.client.log_batch(run, params=[param(key, str(value)) for key, value in configuration.items()])
        return run

    def log(self, run: Any, values: dict[str, float], step: int) -> None:
        """Logs the values."""
        metric, now = self.module("mlflow.entities").Metric, int(1000 * time.time())
        self.client.log_batch(run, metrics=[metric(name, value, now, step) for name, value in values.items()])

    def finish(self, run: Any, diverged: bool | None) -> None:
        """Ends the run: FINISHED, FAILED where it diverged, KILLED where it was interrupted."""
        self.client.set_terminated(run, {False: "FINISHED", True: "FAILED", None: "KILLED"}[diverged])


class Trackio(Tracker):
    """Trackio, in its local database."""

    install = "trackio"

    def __init__(self, project: str, roles: tuple[str, ...] = ("final",)) -> None:
        super().__init__(roles)
        self.project = project

    def start(self, row: dict[str, Any], name: str, configuration: dict[str, Any]) -> Any:
        """Returns a run in the variant's group."""
        return self.module("trackio").init(
            project=self.project, name=f"{name}-{row['run']}", group=row["variant"], config=configuration, embed=False
        )

    def log(self, run: Any, values: dict[str, float], step: int) -> None:
        """Logs the values."""
        run.log(values, step=step)

    def finish(self, run: Any, diverged: bool | None) -> None:
        """Ends the run."""
        run.finish()
