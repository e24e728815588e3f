"""One training run, from its settings alone: the same settings give the same numbers in any process."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from sandbox import probes
from sandbox.optimizer import Optimizer
from sandbox.recipe import Recipe
from sandbox.schedules import warmup
from sandbox.tasks import Task

SCHEDULES: dict[str, Callable[[Optimizer, int], LRScheduler | None]] = {
    "constant": lambda optimizer, steps: None,
    "cosine": lambda optimizer, steps: CosineAnnealingLR(optimizer, max(steps, 1)),
    "inverse-sqrt": lambda optimizer, steps: LambdaLR(optimizer, lambda k: 1 / math.sqrt(k + 1)),
}

# A run that ends this far above its initial training loss has diverged, even if every number is finite: nine times the loss's
# size at the start, or nine where that is below one.
DIVERGED = 9.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run depends on.  `role` is "tuning" or "final": only final runs look at the test split, once, at their end."""

    task: str
    fingerprint: str
    lr: float
    seed: int
    role: str
    steps: int
    warmup: int
    schedule: str
    evaluations: int
    backend: str = "eager"  # "vmap": made together with others by `sandbox.study.together`
    task_identity: str = ""  # of the task's options and data
    code: str = ""  # of the source that the numbers come from
    probes: str = ""  # names of the probes that looked on, and at which steps

    def key(self) -> str:
        """Sixteen digits that name the run on disk."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def train(task: Task, recipe: Recipe, settings: Settings, watch: probes.Watch | None = None) -> list[dict[str, Any]]:
    """Runs it; one row an evaluation: step, losses, metric, floor occupancy, and at the end the test split.

    watch: probes to measure with; its rows are its own.

    A loss or gradient that is not finite ends the run: it has diverged, its losses are infinite from then on, its metric NaN.
    """
    with one_thread():
        if not allowed(recipe, settings.lr):  # a rate of the grid is then lost, not an end of everything
            return never(settings)
        return _train(task, recipe, settings, watch)


def allowed(recipe: Recipe, lr: float) -> bool:
    """Whether the recipe's decay allows the rate."""
    try:
        recipe.decay.check_lr(lr)
    except ValueError:
        return False
    return True


def never(settings: Settings) -> list[dict[str, Any]]:
    """The rows of a run that cannot begin."""
    rows = [_lost(step) for step in [0, *evaluation_steps(settings)]]
    rows[-1] |= {"test_loss": math.inf, "test_metric": math.nan} if settings.role == "final" else {}
    return [{**row, "diverged": True, "seconds_a_step": math.nan} for row in rows]


def _train(task: Task, recipe: Recipe, settings: Settings, watch: probes.Watch | None) -> list[dict[str, Any]]:
    params = {name: p.clone().requires_grad_() for name, p in task.init(settings.seed).items()}
    optimizer = Optimizer(params.items(), recipe, lr=settings.lr, backend=settings.backend, seed=settings.seed)
    optimizer.watch = watch
    rates = scheduler(optimizer, settings.steps, settings.warmup, settings.schedule)
    batches, clock = task.batches(settings.seed), []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = task.loss(params, batch)
        if not recipe.second_order:
            loss.backward()
        return loss

    stops = evaluation_steps(settings)
    rows, diverged = [_row(task, params, optimizer, 0)], False
    for step in range(1, settings.steps + 1):
        batch = next(batches)
        began = time.perf_counter()
        try:
            diverged = not math.isfinite(float(optimizer.step(closure).detach()))
        except FloatingPointError:
            diverged = True
        clock.append(time.perf_counter() - began)
        if diverged:
            break
        if rates is not None:
            rates.step()
        if step in stops:
            rows.append(_row(task, params, optimizer, step))
            diverged = not math.isfinite(rows[-1]["train_loss"])
            if diverged:
                rows.pop()
                break
    seconds = statistics.median(clock) if clock else math.nan
    return finished(rows, settings, diverged, seconds, lambda: task.evaluate(params, "test"))


def finished(
    rows: list[dict[str, Any]],
    settings: Settings,
    diverged: bool,
    seconds: float,
    test: Callable[[], tuple[float, ...]],
) -> list[dict[str, Any]]:
    """The rows of a run with its end: whether it has diverged, what it then did not live to see, and its test split."""
    stops = evaluation_steps(settings)
    start = rows[0]["train_loss"]
    diverged = diverged or not rows[-1]["train_loss"] <= start + DIVERGED * max(abs(start), 1.0)
    if diverged:
        reached = {row["step"] for row in rows}
        rows = rows[:-1] if settings.steps in reached else rows
        rows += [_lost(step) for step in stops if step > rows[-1]["step"]]
    end = {"test_loss": math.inf, "test_metric": math.nan} if diverged else {}
    if settings.role == "final" and not diverged:
        end["test_loss"], end["test_metric"], *_ = test()
    rows[-1] |= end if settings.role == "final" else {}
    shared = {"diverged": diverged, "seconds_a_step": seconds}
    return [{**row, **shared} for row in rows]


def evaluation_steps(settings: Settings) -> list[int]:
    """When a run is evaluated: `evaluations` times at equal distances, the last step included."""
    return evenly(settings.steps, settings.evaluations)


def evenly(steps: int, evaluations: int) -> list[int]:
    """`evaluations` steps at equal distances, the last one included."""
    count = min(evaluations, steps)
    return sorted({round(steps * (k + 1) / count) for k in range(count)})


def _row(task: Task, params: Any, optimizer: Optimizer, step: int) -> dict[str, Any]:
    (train_loss, *_), (loss, metric, *_) = task.evaluate(params, "train"), task.evaluate(params, "validation")
    return row(step, train_loss, loss, metric, probes.floor_occupancy(optimizer))


def row(
    step: int, train_loss: float, validation_loss: float, validation_metric: float, floor_occupancy: float | None
) -> dict[str, Any]:
    """An evaluation; a loss that is no number counts as infinite."""
    return {
        "step": step,
        "train_loss": train_loss if math.isfinite(train_loss) else math.inf,
        "validation_loss": validation_loss if math.isfinite(validation_loss) else math.inf,
        "validation_metric": validation_metric,
        "floor_occupancy": floor_occupancy,
        "test_loss": None,
        "test_metric": None,
    }


def _lost(step: int) -> dict[str, Any]:
    """The row of an evaluation that a diverged run did not live to see."""
    return row(step, math.inf, math.inf, math.nan, None)


def scheduler(optimizer: Optimizer, steps: int, warm: int, schedule: str) -> LRScheduler | None:
    """The scheduler of a run: `warm` updates of linear warm-up, then the schedule called so."""
    then = SCHEDULES[schedule](optimizer, steps - warm)
    return warmup(optimizer, warm, then=then) if warm else then


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Small models are faster on one thread, and sums then do not depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
