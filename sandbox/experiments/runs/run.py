"""One run: the only training loop.  The same settings give the same numbers in any process."""

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
from sandbox.experiments.runs.methods import Method, Ours
from sandbox.experiments.runs.settings import Run
from sandbox.experiments.runs.shares import Shares
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
    """Makes the run; a row an evaluation: step, losses, metrics, floor occupancy, gradient evaluations, and at the end the
    test split.

    watch: probes to measure with; its rows are its own.  tell: hears of updates and of every row but the last as they come.
    group: the ranks that make the run together, each of which calls this.
    A loss or gradient that is not finite ends the run: it has diverged, its losses are infinite from then on, its metrics NaN.
    """
    with threads(run.options.threads):
        if not method.allows(run.lr):  # a rate of the grid is then lost, not an end of everything
            tell(run.steps, None)
            return never(run)
        return _Training(task, method, run, watch, Shares(task, group)).rows(tell)


class _Training:
    """Network, optimizers and streams of a run."""

    def __init__(self, task: Task, method: Method, run: Run, watch: probes.Watch | None, shares: Shares) -> None:
        self.task, self.method, self.run, self.shares = task, method, run, shares
        self.device = torch.device(run.options.device)
        self.model = task.start(run.seed)
        held = [*task.generators(), *held_by(self.model)]
        self.noise = Generators(run.seed, "noise", held=held)
        self.network = isinstance(self.model, torch.nn.Module)
        if self.network:
            self.model.to(self.device)
        self.called = torch.compile(self.model) if run.options.compile_model and self.network else self.model
        dtype = run.options.state_dtype and getattr(torch, run.options.state_dtype)
        options = {"backend": run.way, "seed": run.seed, "process_group": shares.group, "state_dtype": dtype}
        self.optimizers = method.make(task.groups(self.model), run.lr, options)
        self.params = [p for o in self.optimizers for g in o.param_groups for p in g["params"]]
        if watch is not None and isinstance(method, Ours):
            self.optimizers[0].watch = watch
        made = (schedules.of_run(o, run.steps, run.warmup, run.schedule) for o in self.optimizers)
        self.schedulers = [s for s in made if s is not None]
        self.batches = task.stream(run.seed, self.model)
        self.fixed = [self._next() for _ in range(method.functions)]
        self.gradients = 0
        self._mode("train")

    def rows(self, tell: Tell) -> list[Row]:
        run, clock, diverged, stopped = self.run, list[float](), False, False
        rows, stops, began, told, tenths = [self._row(0)], set(run.at), time.perf_counter(), 0, 0
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
                rows.append(self._row(step))
                diverged = not math.isfinite(rows[-1]["train_loss"])
                if diverged:
                    rows.pop()
                if diverged or stopped or step == run.steps:
                    break
                tell(step - told, running(rows[-1]))
                told = step
            elif time.perf_counter() - began > 0.1 * (tenths + 1):  # not at each of many short steps
                tenths = int(10 * (time.perf_counter() - began))
                tell(step - told, None)
                told = step
        tell(run.steps - told, None)
        seconds = statistics.median(clock) if clock else math.nan
        if stopped and not diverged:
            run = dataclasses.replace(run, steps=rows[-1]["step"], at=tuple(r["step"] for r in rows[1:]))
        return finished(rows, run, diverged, seconds, self._test, stopped)

    def _step(self) -> bool:
        """One update; whether loss and gradients were finite."""
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
            self.gradients += len(batches) * self.method.gradients_a_call
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            total: Any = 0.0
            for batch in batches:
                mine, weight = self.shares.of(batch)
                with self._autocast():
                    loss = self.task.loss(self.called, mine) / (len(batches) / weight)
                if self.method.second_order:
                    total = total + loss
                else:
                    loss.backward()
                    total = total + loss.detach()
            return total if self.method.second_order else self.shares.average(self.params, total)

        first, *others = self.optimizers
        try:
            with self.noise if self.task.stochastic or not isinstance(self.method, Ours) else contextlib.nullcontext():
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
        """Of optimizers that have one, as schedule-free ones do."""
        for optimizer in self.optimizers:
            if hasattr(optimizer, mode):
                getattr(optimizer, mode)()

    def _evaluate(self, split: str) -> tuple[float, ...]:
        self._mode("eval")
        with self._autocast():
            found = self.task.evaluate(self.model, split)
        self._mode("train")
        return found

    def _row(self, step: int) -> Row:
        train, validation = self._evaluate("train")[0], self._evaluate("validation")
        floor = probes.floor_occupancy(self.optimizers[0]) if isinstance(self.method, Ours) else None
        made = row(self.task, step, train, validation, floor, self.gradients)
        return {**made, "state_words": self._words()}

    def _words(self) -> float:
        """State numbers a parameter: a recipe's, or as the optimizers hold them."""
        if isinstance(self.method, Ours):
            return self.method.recipe.words(p.shape for group in self.optimizers[0].param_groups for p in group["params"])
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
    """Entries of the tensors in a piece of state of a parameter; a number kept for a whole tensor does not count."""
    if isinstance(value, torch.Tensor):
        return value.numel() if value.ndim or not axes else 0
    if isinstance(value, list | tuple):
        return sum(_numbers(each, axes) for each in value)
    return 0


def running(row: Row) -> Row:
    """An evaluation in the midst of a run, of whose end nothing is known."""
    return {**row, "diverged": None, "stopped": None, "seconds_a_step": None}


def never(run: Run) -> list[Row]:
    """The rows of a run that cannot begin."""
    rows = [lost(step) for step in [0, *run.at]]
    rows[-1] |= {"test_loss": math.inf, "test_metric": math.nan} if run.role == "final" else {}
    return [{**each, "diverged": True, "stopped": False, "seconds_a_step": math.nan} for each in rows]


def finished(
    rows: list[Row], run: Run, diverged: bool, seconds: float, test: Callable[[], tuple[float, ...]], stopped: bool = False
) -> list[Row]:
    """The rows of a run with its end: whether it has diverged, what it then did not live to see, and its test split."""
    start = rows[0]["train_loss"]
    diverged = diverged or not rows[-1]["train_loss"] <= start + DIVERGED * max(abs(start), 1.0)
    if diverged:
        reached = {each["step"] for each in rows}
        rows = rows[:-1] if run.steps in reached else rows
        rows += [lost(step) for step in run.at if step > rows[-1]["step"]]
    if run.role == "final":
        rows[-1] |= {"test_loss": math.inf, "test_metric": math.nan} if diverged else named(rows[0], "test", test())
    shared = {"diverged": diverged, "stopped": stopped, "seconds_a_step": seconds}
    return [{**each, **shared} for each in rows]


def row(
    task: Task, step: int, train_loss: float, validation: Sequence[float], floor: float | None, gradients: float | None = None
) -> Row:
    """An evaluation; a loss that is no number counts as infinite.  Metrics after the first one have columns of their names."""
    _, *more = task.scores()
    held = {"validation_loss": None, "validation_metric": None, **{f"validation_{name}": None for name in more}}
    made: Row = {"step": step, "train_loss": train_loss if math.isfinite(train_loss) else math.inf, **held}
    made |= dict(zip(held, validation, strict=True))
    made["validation_loss"] = validation[0] if math.isfinite(validation[0]) else math.inf
    return {**made, "floor_occupancy": floor, "gradients": gradients, "test_loss": None, "test_metric": None}


def named(like: Row, split: str, values: Sequence[float]) -> Row:
    """Loss and metrics of a split by their columns, as in a row of the same task."""
    columns = [c for c in like if c.startswith("validation_")]
    return {split + c.removeprefix("validation"): v for c, v in zip(columns, values, strict=True)}


def lost(step: int) -> Row:
    """The row of an evaluation that a diverged run did not live to see."""
    infinite = {"train_loss": math.inf, "validation_loss": math.inf, "validation_metric": math.nan}
    return {"step": step, **infinite, "floor_occupancy": None, "gradients": None, "test_loss": None, "test_metric": None}


@contextlib.contextmanager
def threads(number: int = 1) -> Iterator[None]:
    """So many threads of torch: small models are fastest on one, and sums then do not depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
