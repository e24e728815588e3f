"""Which known differences explain that two methods part: found by making them."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import torch

from sandbox.blocks import AdamWDecay
from sandbox.equivalence import battery, changes
from sandbox.equivalence.battery import ULP, Case, Problem, Run
from sandbox.equivalence.changes import Change
from sandbox.equivalence.methods import Method
from sandbox.forms import lookup
from sandbox.optimizer import from_torch, groups

MARGIN = 100.0  # what two orders of the same operations may differ by, in what rounding each gradient once does
SINGLE, HALF = 2.0**-24, 2.0**-8  # float32's and bfloat16's unit


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of one case.

    worst: the largest difference of two steps, of their size.  grown: what one unit in the last place of each gradient makes of
    it.  step, place: where they part first, from 1 and 0; None: nowhere.  places: of all tensors that part.  failed: an error
    of one of them.  undecided: whether rounding alone grows to whole steps.
    """

    case: Case
    worst: float
    grown: float
    step: int | None = None
    place: int | None = None
    size: float = 0.0
    places: tuple[int, ...] = ()
    failed: str | None = None
    undecided: bool = False

    @property
    def equal(self) -> bool:
        """Whether both make the same steps."""
        return self.step is None and self.failed is None


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What `changed`, one of the methods or the variant that one of them is, needs to make the steps of `other`.

    unexplained: names of the cases in which they differ all the same.
    """

    changed: str
    other: str
    changes: list[str]
    unexplained: list[str]


class Comparison:
    """Runs methods on the battery, and compares them.

    names: of the tensors.  sides: the two methods; what they are changed to is taken to round as they do.
    """

    def __init__(self, names: list[str], lr: float, steps: int, sides: tuple[Method, Method]) -> None:
        self.problem, self.lr, self.steps, self.sides = Problem(names), lr, steps, sides
        self._runs: dict[Any, tuple[Method, Run]] = {}
        self.unit = max(map(self._unit, sides))

    def run(self, method: Method, case: Case, noise: float = 0.0, steps: int | None = None) -> Run:
        """A run, made once."""
        key = id(method), case.name, noise, steps or self.steps
        if key not in self._runs:  # with the method, so that its id stays its own
            self._runs[key] = method, self.problem.run(method, case, self.lr, steps or self.steps, noise)
        return self._runs[key][1]

    def _unit(self, method: Method) -> float:
        """The unit of rounding in which a method computes: float64's, float32's or bfloat16's.

        What a method that computes in float64 makes of a small change is in proportion to it; one that rounds its gradients to
        fewer bits makes nothing of it, or much more.
        """
        plain = self.run(method, battery.CASES[0], steps=3)

        def response(noise: float) -> float:
            shaken = self.run(method, battery.CASES[0], noise, 3)
            return float(battery.differences(plain, shaken).nan_to_num(0.0).amax()) / noise

        coarse = response(2.0**-6)
        for noise, unit in ((2.0**-16, HALF), (2.0**-36, SINGLE)):
            if coarse > 0 and not coarse / 64 <= response(noise) <= 64 * coarse:
                return unit
        return ULP

    def compare(self, one: Method, two: Method, case: Case) -> Outcome:
        """The outcome of a case."""
        runs = [self.run(method, case) for method in (one, two)]
        failed = [
            f"{m.name}: {type(r.failed).__name__}: {str(r.failed)[:120]}"
            for m, r in zip((one, two), runs, strict=True)
            if r.failed
        ]
        if failed:
            return Outcome(case, math.inf, 0.0, failed="; ".join(failed))
        difference = battery.differences(*runs)
        worst, theta = float(difference.nan_to_num(0.0).amax()), torch.maximum(*map(battery.rounding, runs))
        if case is not battery.CASES[0] and bool((difference <= self.unit + ULP * theta).all()):
            return Outcome(case, worst, 0.0)
        # what a change of each gradient by one unit makes of the steps, so far the largest
        shaken = [(r, self.run(m, case, self.unit)) for m, r in zip((one, two), runs, strict=True) if m in self.sides]
        grown = torch.stack([battery.differences(r, s).nan_to_num(math.inf) for r, s in shaken]).amax(0).cummax(0).values
        allowed = (8.0 if self.unit == HALF else MARGIN) * (grown + self.unit) + MARGIN * ULP * theta
        apart = (difference > allowed) & (allowed < 1)
        finite = float(torch.where(grown < math.inf, grown, 0.0).amax())
        row = Outcome(case, worst, finite, undecided=bool((allowed >= 1).any()))
        if not apart.any():
            return row
        step = int(apart.any(1).nonzero()[0])
        place = int(torch.where(apart[step], difference[step], -1.0).argmax())
        places = tuple(apart.any(0).nonzero().flatten().tolist())
        return dataclasses.replace(row, step=step + 1, place=place, size=float(difference[step, place]), places=places)

    def near(self, one: Method, two: Method, case: Case, steps: int = 3) -> bool:
        """Whether the first steps are equal at a glance: what is not is not worth a comparison."""
        a, b = (self.run(method, case, steps=steps) for method in (one, two))
        close = battery.differences(a, b).nan_to_num(1.0) <= max(1e-5, 64 * self.unit)
        return not (a.failed or b.failed) and bool(close.all())

    # -- the search --------------------------------------------------------------------------------------------------

    def explain(self, one: Method, two: Method, cases: list[Case], seconds: float) -> Explanation | None:
        """Returns the changes with which one of them equals the other; None where none was found in the time."""
        end = time.process_time() + seconds
        best: Explanation | None = None
        starts = list(self._starts(one, two, cases))
        for pairs in (False, True):
            for changed, other in starts:
                made, left = self._search(changed, other, cases, end, pairs)
                if made and (best is None or len(left) < len(best.unexplained)):
                    best = Explanation(changed.name, other.name, [change.text for change in made], left)
                if best is not None and not best.unexplained:
                    return best
        return best

    def _starts(self, one: Method, two: Method, cases: list[Case]) -> Iterator[tuple[Method, Method]]:
        """What is changed, and what it is to equal; of two torch optimizers also the recipe that one of them is."""
        yield one, two
        yield two, one
        if one.recipe is None and two.recipe is None:
            yield from ((base, b) for a, b in ((one, two), (two, one)) if (base := self._recipe(a, cases)) is not None)

    def _recipe(self, method: Method, cases: list[Case]) -> Method | None:
        """The variant that makes a method's steps, with its numbers."""
        variants, numbers = lookup.package("variants"), method.numbers()
        common = ("adamw", "sgd", "amsgrad", "apollow", "muon", "lion")
        for name in (*common, *(n for n in variants.names() if n not in common)):
            recipe = variants.get(name)
            if "weight_decay" in numbers and "weight_decay" not in groups.paths(recipe):
                recipe = recipe.replace(decay=AdamWDecay(weight_decay=numbers["weight_decay"]), name=name)
            if recipe.analysis.evaluations == 1 and not recipe.analysis.inputs:
                base = Method(name, recipe=changes.with_numbers(recipe, numbers))
                if self.near(base, method, cases[0], 2) and all(self.compare(base, method, case).equal for case in cases):
                    return base
        return None

    def _search(
        self, method: Method, other: Method, cases: list[Case], end: float, pairs: bool
    ) -> tuple[list[Change], list[str]]:
        """Returns changes, at most three, and the cases in which they do not make the method equal.

        Greedily by cases: what makes the first one equal that is not, alone or, with `pairs`, two at once, then the next.
        """
        made: list[Change] = []
        left: list[str] = []
        while len(made) < 3 and time.process_time() < end:
            apart = [o for case in cases if case.name not in left and not (o := self.compare(method, other, case)).equal]
            if not apart:
                return made, left
            best = self._best(
                method, other, [c for c in cases if c.name not in left], apart[0], {c.topic for c in made}, end, pairs
            )
            if best is None:
                left.append(apart[0].case.name)
                continue
            made += best
            method = best[-1].method
        return made, [case.name for case in cases if not self.compare(method, other, case).equal]

    def _best(
        self, method: Method, other: Method, cases: list[Case], first: Outcome, topics: set[str], end: float, pairs: bool
    ) -> list[Change] | None:
        """Returns one change, or two, that make equal the first case that is not, and keep those before it."""
        case, steps = first.case, min(max(2, first.step or 2), self.steps)
        before = cases[: cases.index(case)]

        def works(m: Method) -> bool:
            return self.near(m, other, case, steps) and all(self.compare(m, other, c).equal for c in [case, *before])

        single = [c for c in changes.known_changes(method, other, self.lr) if not topics & set(c.topic.split(", "))]
        good = [[c] for c in single if works(c.method)] or [[c] for c in self._fits(method, other, case) if works(c.method)]
        if not good:
            for one in single if pairs else ():
                if time.process_time() > end:
                    break
                taken = {*topics, *one.topic.split(", ")}
                more = [c for c in changes.known_changes(one.method, other, self.lr) if not taken & set(c.topic.split(", "))]
                more += self._fits(one.method, other, case) if one.topic == "numbers" else []
                good += [[one, c] for c in more if works(c.method)]
                if good:
                    break
        return max(good, key=lambda row: sum(self.compare(row[-1].method, other, c).equal for c in cases), default=None)

    def _fits(self, method: Method, other: Method, case: Case) -> list[Change]:
        """Numbers fitted to the other method: the best of usual values, refined, and rounded to few digits if that will do."""
        target = self.run(other, case, steps=4)
        if target.failed:
            return []

        def distance(names: tuple[str, ...], value: float) -> float:
            try:
                run = self.problem.run(at(names, value), case, self.lr, 4)
                return math.inf if run.failed else float(battery.differences(run, target).nan_to_num(2.0).amax())
            except (ValueError, TypeError):
                return math.inf

        def at(names: tuple[str, ...], value: float) -> Method:
            if not names:
                return dataclasses.replace(method, factor=value)
            assert method.recipe is not None
            return dataclasses.replace(method, recipe=method.recipe.with_hyperparameters(dict.fromkeys(names, value)))

        rows = []
        for names, text in _fitted(method):
            usual = _USUAL.get(text, _OTHERS)
            errors = [distance(names, value) for value in usual]
            rows.append((min(errors), names, text, [value for _, value in sorted(zip(errors, usual, strict=True))[:3]]))
        found = []
        for error, names, text, best in sorted(rows, key=lambda row: row[0])[:2]:
            value = best[0] if error < 1e-6 else _minimum(lambda v, names=names: distance(names, v), best, beta="β" in text)
            found.append(Change(f"{text} = {value:.6g}", "fit", at(names, value)))
        return found


_BETAS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.96, 0.98, 0.985, 0.99, 0.995, 0.999, 0.9999)
_OTHERS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 0.9, 0.99, 1.0, 2.0, 5.0, 10.0)
_USUAL = {
    "β₁": _BETAS, "β₂": _BETAS, "ε": (0.0, *(10.0**-k for k in range(2, 17, 2)), 1e-3, 1e-5, 1e-7, 1e-30),
    "the rate times": (0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0),
}  # fmt: skip


def _fitted(method: Method) -> list[tuple[tuple[str, ...], str]]:
    """(dotted paths, what they are called) of the numbers of a method that are fitted."""
    rows: list[tuple[tuple[str, ...], str]] = [((), "the rate times")]
    if method.recipe is None:
        return rows
    paths = groups.paths(method.recipe)
    named = from_torch.numbers(method.recipe)
    rows += [
        (tuple(paths[n] for n in named[key]), text)
        for key, text in (("beta1", "β₁"), ("beta2", "β₂"), ("eps", "ε"))
        if key in named
    ]
    taken = {path for row, _ in rows for path in row}
    return rows + [((path,), name) for name, path in paths.items() if path not in taken and not path.endswith("weight_decay")]


def _minimum(f: Any, best: list[float], *, beta: bool) -> float:
    """Where f is smallest about the three best of some values: golden section, rounded to few digits if no worse."""
    there = (lambda v: -math.log(1 - v)) if beta else (lambda v: math.log(max(v, 1e-30)))
    back = (lambda z: 1 - math.exp(-z)) if beta else math.exp
    a, b = there(min(best)), there(max(best))
    x, y = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
    fx, fy = f(back(x)), f(back(y))
    for _ in range(26):
        if fx < fy:
            b, y, fy = y, x, fx
            x = b - _GOLDEN * (b - a)
            fx = f(back(x))
        else:
            a, x, fx = x, y, fy
            y = a + _GOLDEN * (b - a)
            fy = f(back(y))
    value: float = back((a + b) / 2)
    short = [1 - float(f"{1 - value:.{k}g}") if beta else float(f"{value:.{k}g}") for k in (1, 2, 3, 4)]
    return next((each for each in short if f(each) < 1e-7), value)


_GOLDEN = (5**0.5 - 1) / 2
