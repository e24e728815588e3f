"""The answer, as an object and as text."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from sandbox.equivalence import battery
from sandbox.equivalence.explain import HALF, SINGLE, Comparison, Explanation, Outcome
from sandbox.equivalence.methods import Method, resolve
from sandbox.utils import suggest

_UNITS = {battery.ULP: "float64", SINGLE: "float32", HALF: "bfloat16"}


@dataclasses.dataclass(frozen=True)
class Sameness:
    """Whether two optimizers make the same steps; true where they do.  print() gives the whole answer.

    one, two: their names.  outcomes: of each case.  tensors: names of the shapes that both train.  numbers: what they declare
    differently, as (one's, two's).  explanation: the known differences, None where there are none or none was found.
    quantities: of the first difference, what of the states agrees and what does not.  precision: in which both compute.
    """

    one: str
    two: str
    lr: float
    steps: int
    tensors: list[str]
    outcomes: list[Outcome]
    numbers: dict[str, tuple[float | None, float | None]]
    precision: str
    explanation: Explanation | None = None
    quantities: str = ""

    @property
    def same(self) -> bool:
        """Whether the steps are equal to rounding in every case."""
        return all(outcome.equal for outcome in self.outcomes)

    def __bool__(self) -> bool:
        return self.same

    @property
    def first(self) -> Outcome | None:
        """The first case that is not equal."""
        return next((outcome for outcome in self.outcomes if not outcome.equal), None)

    def sentence(self) -> str:
        """Returns the answer in one line."""
        worst, grown = (max(getattr(o, name) for o in self.outcomes) for name in ("worst", "grown"))
        if self.same:
            return (
                f"equal to rounding of {self.precision}: {len(self.outcomes)} cases of {self.steps} steps, largest difference "
                f"{worst:.1e} of a step (one unit in the last place of the gradients makes {grown:.1e})"
            )
        apart = {place for o in self.outcomes for place in (range(len(self.tensors)) if o.failed else o.places)}
        alike = [name for place, name in enumerate(self.tensors) if place not in apart]
        if self.explanation is None:
            shapes = f"; equal for tensors of the shape of {', '.join(alike)}" if alike else ""
            return f"different, and no known difference explains it{shapes}"
        changed, changes = self.explanation.changed, "; ".join(self.explanation.changes)
        rest = f", but in: {', '.join(self.explanation.unexplained)}" if self.explanation.unexplained else ""
        unit = "" if self.precision == "float64" else f" (to rounding of {self.precision})"
        return f"different; {changed} equals {self.explanation.other} with: {changes}{rest}{unit}"

    def __str__(self) -> str:
        """The answer."""
        lines = [f"{self.one} and {self.two}: {self.sentence()}"]
        if (first := self.first) is not None:
            equal = [o.case.name for o in self.outcomes if o.equal]
            lines += [
                f"  equal in: {', '.join(equal) or 'no case'}",
                f"  different in: {', '.join(o.case.name for o in self.outcomes if not o.equal)}",
            ]
            if first.failed:
                lines.append(f"  {first.case.name}: {first.failed}")
            else:
                name = self.tensors[first.place or 0]
                shape = battery.SHAPES[name]
                lines.append(
                    f"  first difference: {first.case.name}, step {first.step}, tensor {name} {shape}: "
                    f"the step differs by {first.size:.2g} of its size (rounding: {first.grown:.1e})"
                )
            if self.quantities:
                lines.append(f"  {self.quantities}")
        for name, (mine, theirs) in self.numbers.items():
            lines.append(f"  {name}: {_number_text(mine)} and {_number_text(theirs)}")
        if lost := [shape for shape in battery.SHAPES if shape not in self.tensors]:
            lines.append(f"  not compared, as one of them does not train it: {', '.join(lost)}")
        if unclear := [o.case.name for o in self.outcomes if o.undecided and o.equal]:
            lines.append(f"  rounding alone grows to whole steps, so that the last ones say nothing: {', '.join(unclear)}")
        return "\n".join(lines)


def _number_text(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def same(
    one: Any, two: Any, *, lr: float | None = None, steps: int = 12, explain: bool = True, seconds: float = 60.0
) -> Sameness:
    """Returns whether two optimizers make the same steps, and if not, where they part and which known difference explains it.

    one, two: a Recipe, a torch optimizer's class, a function of (params, lr=…), or a text: a variant's name, a TOML file, the
        name of a class of torch.optim, "module:Class" or "file.py:Class", also with arguments: "AdamW(eps=1e-6)".
    lr: the rate of both; default the first one's own.  Each has the numbers that it declares.
    steps: of each case.  explain: whether known differences are tried, for about `seconds` of the processor at most.
    Raises ValueError where no tensor is trained by both, and where a method draws random numbers of its own.
    """
    one, two = resolve(one), resolve(two)
    if one.name == two.name:
        two = dataclasses.replace(two, name=f"{two.name} (the second)")
    rate = lr if lr is not None else one.lr or two.lr or 1e-3
    refused = {m.name: battery.refusals(m, rate) for m in (one, two)}
    names = [name for name in battery.SHAPES if not any(name in errors for errors in refused.values())]
    if not names:
        reasons = [f"{who}: {suggest.short(error)}" for who, errors in refused.items() for error in list(errors.values())[:1]]
        raise ValueError(f"{one.name} and {two.name} train no tensor of the same shape; {'; '.join(reasons)}")
    comparison = Comparison(names, rate, steps, (one, two))
    _check_draws(comparison, one, two)
    numbers = {m.name: m.numbers() for m in (one, two)}
    cases = [case for case in battery.CASES if _concerns(case, numbers)]
    outcomes = [comparison.compare(one, two, case) for case in cases]
    if comparison.unit == battery.ULP and not all(outcome.equal for outcome in outcomes):
        comparison.unit = SINGLE
        coarse = [comparison.compare(one, two, case) for case in cases]
        if all(outcome.equal for outcome in coarse):
            outcomes = coarse
        else:
            comparison.unit = battery.ULP
    declared = {
        key: (numbers[one.name].get(key), numbers[two.name].get(key)) for key in ("beta1", "beta2", "eps", "weight_decay")
    }
    answer = Sameness(
        one.name, two.name, rate, steps, names, outcomes,
        {key: pair for key, pair in declared.items() if pair[0] != pair[1]},
        _UNITS[comparison.unit],
    )  # fmt: skip
    if answer.same:
        return answer
    first = answer.first
    assert first is not None
    quantities = "" if first.failed else _quantities(comparison, one, two, first)
    explanation = comparison.explain(one, two, cases, seconds) if explain else None
    return dataclasses.replace(answer, quantities=quantities, explanation=explanation)


def _concerns(case: battery.Case, numbers: dict[str, dict[str, float]]) -> bool:
    """Whether a case has anything to say: a number that it sets must be one of both."""
    changed = {name for _, name, value in case.numbers if value}
    return all(name in each for name in changed for each in numbers.values())


def _check_draws(comparison: Comparison, *methods: Method) -> None:
    for method in methods:
        runs = []
        for seed in (0, 1):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                runs.append(comparison.problem.run(method, battery.CASES[0], comparison.lr, 3))
        if not torch.equal(*(torch.cat([p.reshape(-1) for p in run.points[-1]]).nan_to_num() for run in runs)):
            raise ValueError(f"{method.name} draws random numbers, so that two of its own runs differ")


def _quantities(comparison: Comparison, one: Method, two: Method, first: Outcome) -> str:
    """What of the two states agrees after the first step that differs, by value whatever its name."""
    runs = [comparison.run(m, first.case, steps=first.step) for m in (one, two)]
    states = [_states(run, first.place or 0) for run in runs]
    pairs: list[str] = []
    left: list[str] = []
    for name, value in states[0].items():
        alike = [n for n, v in states[1].items() if bool((value - v).abs().max() <= 1e-9 * value.abs().max())]
        (pairs if alike else left).append(f"{name} = {alike[0]}" if alike else name)
    others = [n for n in states[1] if not any(pair.endswith(f"= {n}") for pair in pairs)]
    text = f"states that agree after it: {', '.join(pairs) or 'none'}"
    return text + (f"; with no equal: {', '.join([*left, *others])}" if left or others else "")


def _states(run: Any, place: int) -> dict[str, Tensor]:
    """The states of a tensor of its own shape."""
    p = run.params[place]
    state = dict(run.optimizer.state.get(p, {}))
    return {
        k: v.double()
        for k, v in state.items()
        if isinstance(v, Tensor) and v.shape == p.shape and (v.ndim or k not in ("step", "lr"))
    }
