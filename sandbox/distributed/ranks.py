"""The ranks that make a step together: their sums, and what they decide alike.

A step is a generator of rounds (`Round`): it yields this rank's parts of sums and gets back the sums over all ranks.  The
all_reduce of a round carries them all, behind a head by which the ranks notice, before anything has changed, that one of them
has failed, plans another step than the last one, or has other hyperparameters.  Only then do they talk to each other at length
(`Ranks._compare`), all of them: a step that cannot be made raises on every rank, and says whose fault it is.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from sandbox.distributed import private
from sandbox.distributed.sums import MAX, SUM, Pending
from sandbox.utils import suggest

T = TypeVar("T")


class Lost(RuntimeError):
    """A collective has failed, since a rank no longer takes part."""


ANSWER = datetime.timedelta(seconds=10)  # how long survivors wait for each other before they name the missing ranks


@dataclasses.dataclass(frozen=True)
class Round:
    """Parts of sums to be exchanged; plan and numbers: of the step, in its first round.

    plan: what the ranks must have in common for their sums to belong together: (group, tensors, structure) of each cohort.
    numbers: hyperparameters and step counts.  names: of the plan's tensors, cohort by cohort; asked for where ranks differ.
    """

    pending: Sequence[Pending] = ()
    plan: Any = None
    numbers: tuple[float, ...] = ()
    names: Callable[[], list[list[str]]] = list


Rounds = Generator[Round, list[Tensor], T]


class Ranks:
    """The processes of a group as they make steps together.

    device: of the tensors that collectives get.
    """

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self.group, self.size = group, dist.get_world_size(group)
        on_gpu = dist.get_backend(group) == "nccl" and device.type == "cpu"  # parameters that are offloaded
        self.device = torch.device("cuda") if on_gpu else device
        self._steps = 0
        self._plan: Any = None
        self._expected: list[tuple[Any, int]] = [
            (SUM, 0)
        ]  # of each round of the plan: its first collective, and how many numbers

    def drive(self, step: Rounds[T]) -> T:
        """Runs a step round by round.

        Raises what the step raises, and RuntimeError or ValueError on every rank where one of them has failed or differs.
        """
        self._steps += 1
        number, totals = 0, None
        while True:
            try:
                request = next(step) if totals is None else step.send(totals)
            except StopIteration as end:
                return end.value
            except Exception as error:
                self._fail(number, error)
            totals = self._exchange(number, request)
            number += 1

    def gather(self, value: Any) -> list[Any]:
        """Returns the value of every rank."""
        values: list[Any] = [None] * self.size
        self._collective(lambda: dist.all_gather_object(values, value, self.group))
        return values

    # -- a round -----------------------------------------------------------------------------------------------------

    def _exchange(self, number: int, request: Round) -> list[Tensor]:
        kinds: dict[Any, list[Pending]] = {(SUM, ()): []} if number == 0 else {}
        for p in request.pending:
            kinds.setdefault((p.op, p.groups), []).append(p)
        lead = next((op for op in (SUM, MAX) if (op, ()) in kinds), None)
        vectors = {key: _join(some, self.device) for key, some in kinds.items()}
        if number == len(self._expected):
            self._expected.append((lead, 0 if lead is None else len(vectors[lead, ()])))
        if lead is not None:
            vectors[lead, ()] = self._agree(number, lead, vectors[lead, ()], request)
        for (op, groups), vector in vectors.items():
            if (op, groups) != (lead, ()):
                for group in groups or (self.group,):
                    self._all_reduce(vector, op, group)
        totals = {id(p): v for key, some in kinds.items() for p, v in zip(some, _split(vectors[key], some), strict=True)}
        return [totals[id(p)] for p in request.pending]

    def _agree(self, number: int, op: str, values: Tensor, request: Round) -> Tensor:
        """Returns the totals over all ranks from the first collective of a round; raises where the ranks differ."""
        other = self._expected[number] != (op, len(values)) or (number == 0 and request.plan != self._plan)
        total, agreed = self._send(number, None if other else values, request.numbers)
        if not agreed:
            self._compare(number, request, len(values))
            self._plan, self._expected = request.plan, [(op, len(values))]
            total, _ = self._send(number, values, request.numbers)
        return total

    def _send(self, number: int, values: Tensor | None, numbers: tuple[float, ...] = ()) -> tuple[Tensor, bool]:
        """Returns the totals over all ranks, and whether all of them are in the same step; values None: this one is not."""
        # whether Σ over n ranks of v, n Σ v² = (Σ v)²: only then all v are the same; exact, v < 2¹⁶ and n < 2¹⁰
        v, (op, length) = float(hash(numbers) & 0xFFFF), self._expected[number]
        head = [float(values is None), v, v * v] if number == 0 else [float(values is None)]
        zeros = torch.zeros(length, dtype=torch.float64, device=self.device)
        vector = torch.cat([torch.tensor(head, dtype=torch.float64, device=self.device), zeros if values is None else values])
        self._all_reduce(vector, op, self.group)
        total = vector[: len(head)].tolist()
        same = total[0] == 0 and (number > 0 or self.size * total[2] == total[1] ** 2)
        return vector[len(head) :], same

    def _fail(self, number: int, error: Exception) -> NoReturn:
        """Informs the others, where they are known to wait for this round, and raises."""
        if number < len(self._expected) and self._expected[number][0] is not None:
            self._send(number, None)
            self._compare(number, Round(), 0, error)
        raise error

    def _compare(self, number: int, request: Round, length: int, error: Exception | None = None) -> None:
        """Raises on every rank unless all have the same plan, numbers and length, and no error."""
        rank, text = dist.get_rank(), None if error is None else suggest.short(error)
        everybody = self.gather((rank, text, request.plan, request.numbers, length, request.names()))
        if error is not None:
            raise error
        failed = [f"rank {r} failed: {message}" for r, message, *_ in everybody if message is not None]
        if failed:
            raise RuntimeError(f"{'; '.join(failed)}\nNothing was changed on any rank")
        first = everybody[0]
        for other in everybody[1:]:
            who = f"ranks {first[0]} and {other[0]}"
            if other[2] != first[2]:
                raise ValueError(f"{who} do not make the same step: {_difference(first, other)}")
            if other[3] != first[3]:
                pair = next((pair for pair in zip(first[3], other[3], strict=False) if pair[0] != pair[1]), ("", ""))
                raise ValueError(f"{who} have other rates, hyperparameters or step counts: {pair[0]} and {pair[1]}")
            if other[4] != first[4]:
                raise ValueError(f"{who} ask for {first[4]} and {other[4]} sums")
        if number > 0:
            raise ValueError("a block asks for other sums than at the step before")

    # -- collectives -------------------------------------------------------------------------------------------------

    def _all_reduce(self, vector: Tensor, op: str, group: ProcessGroup) -> None:
        kind = dist.ReduceOp.MAX if op == MAX else dist.ReduceOp.SUM
        self._collective(lambda: dist.all_reduce(vector, kind, group))

    def _collective(self, run: Any) -> None:
        collective(run, self.group, f"step {self._steps}")


def collective(run: Callable[[], Any], group: ProcessGroup, occasion: str) -> None:
    """Runs a collective.  Raises Lost, naming the ranks that are missing, where it fails."""
    try:
        run()
    except RuntimeError as error:
        raise Lost(f"{occasion}: {missing(group, occasion)}") from error


def missing(group: ProcessGroup, occasion: str) -> str:
    """Says which ranks do not answer when the others find that a collective has failed."""
    mine, ranks = dist.get_rank(), dist.get_process_group_ranks(group)
    try:
        store = dist.PrefixStore(f"apollo_sandbox/{occasion}", private.store())
        store.set(str(mine), "here")
        try:
            store.wait([str(r) for r in ranks], ANSWER)
        except RuntimeError:
            absent = [str(r) for r in ranks if not store.check([str(r)])]
            return f"rank {', '.join(absent)} did not take part, or stopped in the middle"
    except RuntimeError:
        return "a collective failed, and so did the store that all ranks share: the process that holds it, rank 0, has ended"
    return "a collective failed although every rank takes part"


def _join(pending: Sequence[Pending], device: torch.device) -> Tensor:
    if not pending:
        return torch.zeros(0, dtype=torch.float64, device=device)
    return torch.cat([p.value.reshape(-1) for p in pending]).to(device, torch.float64)


def _split(vector: Tensor, pending: Sequence[Pending]) -> list[Tensor]:
    parts = vector.split([p.value.numel() for p in pending]) if pending else ()
    return [part.view(p.value.shape).to(p.value.device) for part, p in zip(parts, pending, strict=True)]


def _difference(one: Any, two: Any) -> str:
    """Returns in what the steps of two ranks differ; one, two: what `_compare` has gathered from each."""
    named = [{name for row in rank[5] for name in row} for rank in (one, two)]
    for rank, other, mine, theirs in ((one[0], two[0], *named), (two[0], one[0], *named[::-1])):
        if alone := sorted(mine - theirs):
            shown = f"{', '.join(alone[:5])}{' and others' if len(alone) > 5 else ''}"
            return f"{shown}: a gradient on rank {rank}, none on rank {other}"
    for (group, _, here), (_, _, there) in zip(one[2], two[2], strict=False):
        for slot in here:
            if here[slot] != there.get(slot):
                return f"group {group}, {slot}: {here[slot]} and {there.get(slot)}"
    return "their tensors have made different numbers of steps"


# -- cohorts in step --------------------------------------------------------------------------------------------------

# Yields parts of sums, and is sent their totals over all ranks.
SumRequests = Generator[list[Pending], list[Tensor], T]


def advance(run: Generator[Any, list[Tensor], T], totals: list[Tensor] | None) -> tuple[Any, T | None]:
    """Returns what a generator asks for next, or its result."""
    try:
        return (next(run) if totals is None else run.send(totals)), None
    except StopIteration as end:
        return [], end.value


def lockstep(runs: Sequence[SumRequests[T]]) -> SumRequests[list[T]]:
    """Joins several generators into one, which asks together for what they ask for at the same time."""
    results: list[Any] = [None] * len(runs)
    answers: dict[int, list[Tensor] | None] = dict.fromkeys(range(len(runs)))
    while answers:
        requests = {}
        for i, totals in answers.items():
            pending, result = advance(runs[i], totals)
            if pending:
                requests[i] = pending
            else:
                results[i] = result
        if not requests:
            break
        totals_in_order = iter((yield [p for pending in requests.values() for p in pending]))
        answers = {i: [next(totals_in_order) for _ in pending] for i, pending in requests.items()}
    return results
