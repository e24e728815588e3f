"""The training loop of a single run.  The same settings give the same numbers in any process."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroup

from sandbox import probes, schedules
from sandbox.experiments.runs.methods import Method, RecipeMethod
from sandbox.experiments.runs.run import Run
from sandbox.experiments.runs.shares import Shares
from sandbox.recipe import analysis
from sandbox.tasks import Task
from sandbox.tasks.streams import Generators
from sandbox.utils.generators import held_by

# A run that ends this far above its initial training loss has diverged, even if every number is finite: nine times the loss's
# size at the start, or nine where that is below one.
DIVERGED = 9.0

Row = dict[str, Any]
Tell = Callable[[int, Row | None], None]  # called with the updates made since the last call, and an evaluation if there is one


def train(
    task: Task,
    method: Method,
    run: Run,
    watch: probes.Watch | None = None,
    tell: Tell = lambda n, row: None,
    group: ProcessGroup | None = None,
) -> list[Row]:
    """Trains; returns one row per evaluation: step, losses, metrics, floor occupancy, gradient evaluations, and at the end the
    test split.

    watch: probes to measure with, which keeps its own rows.  tell: called with updates and every row but the last as they come.
    group: the ranks that make the run together, each of which calls this.
    A loss or gradient that is not finite ends the run: it has diverged, its losses are infinite from then on, its metrics NaN.
    """
    with threads(run.options.threads):
        if not method.allows(run.lr):  # then one rate of the grid is lost, and the others go on
            tell(run.steps, None)
            return never(run)
        return _Training(task, method, run, watch, Shares(task, group)).rows(tell)


class _Training:
    """The network, optimizers and streams of a run."""

    def __init__(self, task: Task, method: Method, run: Run, watch: probes.Watch | None, shares: Shares) -> None:
        self.task, self.method, self.run, self.shares = task, method, run, shares
        self.device = torch.device(run.options.device)
        self.model = task.start(run.seed)
        self.noise = Generators(run.seed, "noise", held=[*task.generators(), *held_by(self.model)])
        self.network = isinstance(self.model, torch.nn.Module)
        if self.network:
            self.model.to(self.device)
        self.forward = torch.compile(self.model) if run.options.compile_model and self.network else self.model
        dtype = run.options.state_dtype and getattr(torch, run.options.state_dtype)
        options = {"backend": run.way, "seed": run.seed, "process_group": shares.group, "state_dtype": dtype}
        self.optimizers = method.make(task.groups(self.model), run.lr, options, task.parameter_roles)
        self.params = [p for o in self.optimizers for g in o.param_groups for p in g["params"]]
        if watch is not None and isinstance(method, RecipeMethod):
            self.optimizers[0].watch = watch
        schedulers = (schedules.of_run(o, run.steps, run.warmup, run.schedule) for o in self.optimizers)
        self.schedulers = [s for s in schedulers if s is not None]
        self.batches = task.stream(run.seed, self.model)
        self.fixed = [self._next() for _ in range(method.functions)]
        self.gradients = 0
        self._mode("train")

    def rows(self, tell: Tell) -> list[Row]:
        run, clock, diverged, stopped = self.run, list[float](), False, False
        rows, stops, began, reported, tenths = [self._row(0)], set(run.at), time.perf_counter(), 0, 0
        tell(0, running(rows[0]))
        for step in range(1, run.steps + 1):
            start = time.perf_counter()
            diverged = not self._step()
            clock.append(time.perf_counter() - start)
            if diverged:
                break
            for scheduler in self.schedulers:
                scheduler.step()
            if run.options.time_limit is not None:
                stopped = self.shares.any(time.perf_counter() - began > run.options.time_limit)
            if step in stops or stopped:
                rows.append(self._row(step, last=stopped and run.role != "tuning"))
                diverged = not math.isfinite(rows[-1]["train_loss"])
                if diverged:
                    rows.pop()
                if diverged or stopped or step == run.steps:
                    break
                tell(step - reported, running(rows[-1]))
                reported = step
            elif time.perf_counter() - began > 0.1 * (tenths + 1):  # not at each of many short steps
                tenths = int(10 * (time.perf_counter() - began))
                tell(step - reported, None)
                reported = step
        tell(run.steps - reported, None)
        seconds = statistics.median(clock) if clock else math.nan
        if stopped and not diverged:
            run = dataclasses.replace(run, steps=rows[-1]["step"], at=tuple(r["step"] for r in rows[1:]))
        return finished(rows, run, diverged, seconds, self._test, stopped)

    def _step(self) -> bool:
        """Makes one update; returns whether loss and gradients were finite."""
        drawn = [] if self.fixed else self._next()
        calls, mark = 0, None

        def closure(i: int | None = None) -> Any:
            nonlocal calls, mark
            batches = drawn if i is None else self.fixed[i]
            if self.task.stochastic:
                if calls == 0:
                    mark = self.noise.mark()
                else:
                    self.noise.back_to(mark)  # each evaluation of one step sees the same noise
            calls += 1
            self.gradients += len(batches) * self.method.gradients_per_call
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            total: Any = 0.0
            for batch in batches:
                mine, weight = self.shares.share(batch)
                with self._autocast():
                    loss = self.task.loss(self.forward, mine) / (len(batches) / weight)
                if self.method.second_order:
                    total = total + loss
                else:
                    loss.backward()
                    total = total + loss.detach()
            return total if self.method.second_order else self.shares.average(self.params, total)

        first, *others = self.optimizers
        try:
            with self.noise if self.task.stochastic or not isinstance(self.method, RecipeMethod) else contextlib.nullcontext():
                loss = first.step(closure)
                for optimizer in others:
                    optimizer.step()
        except FloatingPointError:
            return False
        if self.method.second_order:
            loss = self.shares.average([], loss)
        return math.isfinite(float(torch.as_tensor(loss).detach()))

    def _next(self) -> list[Any]:
        return [self.task.to(next(self.batches), self.device) for _ in range(self.run.options.accumulate)]

    def _autocast(self) -> Any:
        if self.run.options.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.run.options.autocast))

    def _mode(self, mode: str) -> None:
        """Calls train() or eval() of the optimizers that have it, as schedule-free ones do."""
        for optimizer in self.optimizers:
            if hasattr(optimizer, mode):
                getattr(optimizer, mode)()

    def _evaluate(self, split: str, *, sample: bool = False) -> tuple[float, ...]:
        self._mode("eval")
        with self._autocast():
            values = self.task.evaluate(self.model, split, **({"sample": True} if sample else {}))
        self._mode("train")
        return values

    def _row(self, step: int, *, last: bool = False) -> Row:
        sampled = self.run.full_at is not None and self.task.training_sample is not None
        sample = self._evaluate("train", sample=True)[0] if sampled else None
        full = last or self.run.full_at is None or step in self.run.full_at
        train = self._evaluate("train")[0] if sample is None or full else sample
        validation = self._evaluate("validation")
        floor = probes.floor_occupancy(self.optimizers[0]) if isinstance(self.method, RecipeMethod) else None
        return {**row(self.task, step, train, validation, floor, self.gradients, sample), "state_words": self._words()}

    def _words(self) -> float:
        """Returns state elements per parameter: a recipe's, or as the optimizers hold them."""
        if isinstance(self.method, RecipeMethod):
            total = params = 0
            for group in self.optimizers[0].param_groups:
                shapes = [p.shape for p in group["params"]]
                size = sum(map(math.prod, shapes))
                total += round(size * analysis.state_elements(group["recipe"], shapes, group.get("roles")))
                params += size
            return total / max(params, 1)
        held = params = 0
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                params += sum(p.numel() for p in group["params"])
            for p, state in optimizer.state.items():
                held += sum(_numbers(value, p.ndim) for name, value in state.items() if name != "step")
        return held / max(params, 1)

    def _test(self) -> tuple[float, ...]:
        return self._evaluate("test")


def _numbers(value: Any, axes: int) -> int:
    """Returns the number of tensor entries in a value of a parameter's state; a scalar per tensor does not count."""
    if isinstance(value, torch.Tensor):
        return value.numel() if value.ndim or not axes else 0
    if isinstance(value, list | tuple):
        return sum(_numbers(each, axes) for each in value)
    return 0


def running(row: Row) -> Row:
    """Returns the row of an evaluation during a run, whose end is not known yet."""
    return {**row, "diverged": None, "stopped": None, "seconds_a_step": None}


def never(run: Run) -> list[Row]:
    """Returns the rows of a run that cannot start."""
    rows = [lost(step) for step in [0, *run.at]]
    rows[-1] |= {"test_loss": math.inf, "test_metric": math.nan} if run.role != "tuning" else {}
    return [{**each, "diverged": True, "stopped": False, "seconds_a_step": math.nan} for each in rows]


def finished(
    rows: list[Row], run: Run, diverged: bool, seconds: float, test: Callable[[], tuple[float, ...]], stopped: bool = False
) -> list[Row]:
    """Returns the rows of a run completed by its end: whether it diverged, the evaluations it did not reach, the test split."""
    start = rows[0]["train_loss"]
    diverged = diverged or not rows[-1]["train_loss"] <= start + DIVERGED * max(abs(start), 1.0)
    if diverged:
        reached = {each["step"] for each in rows}
        rows = rows[:-1] if run.steps in reached else rows
        rows += [lost(step) for step in run.at if step > rows[-1]["step"]]
    if run.role != "tuning":
        rows[-1] |= {"test_loss": math.inf, "test_metric": math.nan} if diverged else named(rows[0], "test", test())
    shared = {"diverged": diverged, "stopped": stopped, "seconds_a_step": seconds}
    return [{**each, **shared} for each in rows]


def row(
    task: Task,
    step: int,
    train_loss: float,
    validation: Sequence[float],
    floor: float | None,
    gradients: float | None = None,
    sample_loss: float | None = None,
) -> Row:
    """Returns the row of an evaluation; NaN losses become infinite.  Metrics after the first have columns of their names.

    sample_loss: that of the training sample, where losses during a run are on it.
    """
    _, *more = task.scores()
    names = ["validation_loss", "validation_metric", *(f"validation_{name}" for name in more)]
    values: Row = {"step": step, "train_loss": train_loss if math.isfinite(train_loss) else math.inf}
    values["sample_loss"] = math.inf if sample_loss is not None and not math.isfinite(sample_loss) else sample_loss
    values |= dict(zip(names, validation, strict=True))
    values["validation_loss"] = validation[0] if math.isfinite(validation[0]) else math.inf
    return {**values, "floor_occupancy": floor, "gradients": gradients, "test_loss": None, "test_metric": None}


def named(like: Row, split: str, values: Sequence[float]) -> Row:
    """Returns loss and metrics of a split under the columns that a row of the same task has."""
    columns = [c for c in like if c.startswith("validation_")]
    return {split + c.removeprefix("validation"): v for c, v in zip(columns, values, strict=True)}


def lost(step: int) -> Row:
    """Returns the row of an evaluation that a diverged run did not reach."""
    infinite = {"train_loss": math.inf, "sample_loss": None, "validation_loss": math.inf, "validation_metric": math.nan}
    return {"step": step, **infinite, "floor_occupancy": None, "gradients": None, "test_loss": None, "test_metric": None}


@contextlib.contextmanager
def threads(number: int = 1) -> Iterator[None]:
    """Sets the number of torch's threads: small models are fastest on one, and sums then do not depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
