"""`Task`: what is trained, on what, and how it is judged.

    task = sandbox.Task(
        name="my-network",
        model=lambda: MyNetwork(),                                   # called for every run
        train=train_set, validation=validation_set, test=test_set,   # DataLoader, Dataset, tensors, or seed -> batches
        batch_size=64,                                               # for a Dataset or tensors
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        metrics={"accuracy": lambda model, batch: (model(batch[0]).argmax(-1) == batch[1]).float().mean()},
        epochs=3,
    )
    sandbox.compare(["apollo", "adamw"], task)

As a class, with options of its own: whatever the constructor takes may be an attribute or a method (one that is registered
under a name in `sandbox.tasks` also has `metric` and `higher_is_better` as class attributes, to be listed without its data):

    class MyTask(sandbox.Task):
        name, about, epochs, batch_size = "my-task", "One line for `apollo-sandbox tasks`.", 3, 64

        def model(self):                 # a fresh network
            return MyNetwork()

        def data(self, split):           # of "train", "validation" or "test"; called once a split
            return TensorDataset(X[split], y[split])

        def loss(self, model, batch):    # 0-d
            return cross_entropy(model(batch[0]), batch[1])

        def accuracy(self, model, batch):
            return (model(batch[0]).argmax(-1) == batch[1]).float().mean()

        @property
        def metrics(self):
            return {"accuracy": self.accuracy}
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset

from sandbox.recipe import find_roles
from sandbox.recipe.find_roles import Role
from sandbox.tasks import data
from sandbox.tasks.network import check_network, collecting, hand_out
from sandbox.tasks.streams import Generators
from sandbox.utils import suggest
from sandbox.utils.frame import Frame, untouched
from sandbox.utils.generators import held_by
from sandbox.utils.private_torch import pytree

Params = dict[str, Tensor]
SPLITS = ("train", "validation", "test")
# attributes that follow from the others
_LAZY = ("_frame", "_generators", "_roles", "_sample", "_sizes", "_sources", "epoch", "stochastic", "training_sample")
ROWS = 10_000  # a training split of more rows is evaluated on a sample of it


class Task:
    """A network, its data, loss and metrics, and how long it is trained.

    name: for tables and folders.  about: one line.
    model: a function without arguments that makes the network; it is called for every run, with Python's, NumPy's and torch's
        generators seeded by the run.  A Module in its place is copied for every run: all seeds then start alike.
    train, validation, test: a DataLoader, a Dataset, tensors (one, or a tuple of equally many rows), or a function seed ->
        iterable of batches; any of them may end, and is then begun again: an epoch.  A Dataset and tensors are shuffled each
        epoch and cut into batches of `batch_size` (a rest is dropped); what order and augmentation draw from the global
        generators is the run's own.  A function gets another seed in every epoch.  test: default validation; results then
        rest on the split that rates were chosen on.
    loss: (model, batch) -> 0-d mean loss of the batch.  `model` is the network, or the same network with other tensors put in
        place of its parameters for the length of the call: read parameters and call submodules as you like, but keep none.
    metrics: name -> (model, batch) -> 0-d mean over the batch; the first one is the one that tables show.  Values of batches
        are averaged with the weights `rows(batch)`.  Default: the loss alone.
    output, criterion: (model, batch) -> what the network gives, and (output, batch) -> the loss, in place of `loss`.  Metrics
        then take (output, batch) too, and an evaluation needs one forward pass for all of them.
    lower_is_better: names of the metrics that are better when lower.
    epochs, steps: how long a run is: one of them.  epochs need data with a length.
    evaluation_batch_size: rows at a time in evaluations of a Dataset or tensors.
    groups: model -> parameter groups, as a torch optimizer takes them; see the method.
    roles: name of a parameter, or regular expression searched in names -> its role, where the module does not tell it
        ("pos_embed": "embedding"); see `sandbox.roles`.
    recalibrate: batches of training, at most 20, on which each evaluation first takes BatchNorm's running statistics anew, for
        recipes that evaluate other weights than they train; 0: the statistics of the weights that are trained.
    convex: whether the loss is convex in the parameters.

    What the training loop promises: training mode in steps and evaluation mode in evaluations; buffers belong to the run, and
    an evaluation changes none of them; dropout draws from a stream of the run's own.  State carried from batch to batch (an
    LSTM's) is a buffer, which `begin` sets back.

    Methods to override beside those above: `data(split)`, `begin(model, split)`, `rows(batch)`, `evaluate(model, split)`,
    `to(batch, device)`.
    Raises TypeError for what is no source of batches, ValueError for lengths and sizes that cannot be.
    """

    name: str = "task"
    about: str = ""
    convex: bool = False
    batch_size: int | None = None
    evaluation_batch_size: int = 1000
    recalibrate: int = 0
    epochs: int | None = None
    lower_is_better: Sequence[str] = ()
    roles: Mapping[str, str] = {}
    pure = False  # whether `loss` takes a dict of parameters: see PureTask
    stochastic = True  # whether `loss` may draw random numbers, as dropout does
    output: Callable[[Any, Any], Any] | None = None
    criterion: Callable[[Any, Any], Tensor] | None = None

    def __init__(
        self,
        *,
        name: str | None = None,
        model: Callable[[], nn.Module] | nn.Module | None = None,
        train: Any = None,
        validation: Any = None,
        test: Any = None,
        loss: Callable[[Any, Any], Tensor] | None = None,
        metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
        output: Callable[[Any, Any], Any] | None = None,
        criterion: Callable[[Any, Any], Tensor] | None = None,
        lower_is_better: Sequence[str] | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        evaluation_batch_size: int | None = None,
        recalibrate: int | None = None,
        groups: Callable[[nn.Module], list[dict[str, Any]]] | None = None,
        roles: Mapping[str, str] | None = None,
        about: str | None = None,
        convex: bool | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__") and value is not None}
        if type(self) is Task:
            losses = ("loss",) if output is None and criterion is None else ("output", "criterion")
            lacking = [what for what in ("name", "model", "train", "validation", *losses) if what not in arguments]
            if lacking:
                raise TypeError(f"a task needs {', '.join(f'{what}=' for what in lacking)}")
            if (epochs is None) == (steps is None):
                raise ValueError(f"a task needs either epochs= or steps=, got epochs={epochs}, steps={steps}")
        for what in ("epochs", "steps", "evaluation_batch_size"):
            value = arguments.get(what, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{what} must be a whole number of at least 1, got {value!r}")
        if (type(recalibrate) is not int and recalibrate is not None) or not 0 <= (recalibrate or 0) <= data.SAMPLE:
            raise ValueError(f"recalibrate must be a whole number in [0, {data.SAMPLE}], got {recalibrate!r}")
        if not callable(arguments.get("model", callable)):
            raise TypeError(f"model must be a function that makes a Module, or a Module, got a {type(model).__name__}")
        if isinstance(model, nn.Module):
            check_network(arguments.get("name", self.name), model)
            arguments["model"] = functools.partial(hand_out, model)
        splits = {split: arguments.pop(split) for split in SPLITS if split in arguments}
        if splits:
            self._given = {"test": splits.get("validation"), **splits}
        self.__dict__.update(arguments)
        for metric in arguments.get("lower_is_better", ()):
            if metric not in self.metrics:
                raise ValueError(f"lower_is_better: {suggest.unknown('metric', metric, self.metrics)}")
        for split in splits:
            self.source(split)

    # -- what a subclass defines ------------------------------------------------------------------------------------------

    metrics: Mapping[str, Callable[[Any, Any], Any]] = {}

    def model(self) -> nn.Module:
        """Returns a fresh network."""
        raise TypeError(f"{type(self).__name__} must define model()")

    def data(self, split: str) -> Any:
        """Returns what the batches of a split come from: a DataLoader, a Dataset, tensors, or a function seed -> iterable."""
        if split not in getattr(self, "_given", {}):
            raise TypeError(f"{type(self).__name__} must define data(split), or be given {split}=")
        return self._given[split]

    def loss(self, model: Any, batch: Any, /) -> Tensor:
        """Returns the mean loss of a batch, 0-d."""
        if self.output is None or self.criterion is None:
            raise TypeError(f"{type(self).__name__} must define loss(model, batch), or output and criterion")
        return self.criterion(self.output(model, batch), batch)

    def groups(self, model: Any, /) -> list[dict[str, Any]]:
        """Returns parameter groups: {"params": (name, parameter) pairs, options}; default one group of all parameters.

        Options hold where an optimizer has them, and are left out elsewhere: "weight_decay": 0.0 for a group without decay
        (see `sandbox.tasks.no_decay`), "lr_factor" for a rate in proportion to the run's, and "recipe" for the group's own
        recipe, which takes the place of the run's (a torch optimizer refuses it).
        """
        return [{"params": list(model.named_parameters())}]

    def begin(self, model: Any, split: str) -> None:
        """Called at the start of each epoch of training ("train") and of each evaluation: sets carried state back."""

    def rows(self, batch: Any) -> float:
        """Returns the weight of a batch in a mean: the length of its first tensor.  For texts, the number of tokens."""
        return data.rows_of(batch)

    def to(self, batch: Any, device: torch.device) -> Any:
        """Returns the batch on a device."""
        return pytree.tree_map_only(Tensor, lambda x: x.to(device, non_blocking=True), batch)

    # -- what the package calls -----------------------------------------------------------------------------------------

    @functools.cached_property
    def steps(self) -> int:
        """The number of updates in a run.  Raises ValueError where epochs have no length."""
        if self.epochs is None or self.epoch is None:
            raise ValueError(f"task {self.name!r}: epochs need data with a length; say steps= instead")
        return self.epochs * self.epoch

    @functools.cached_property
    def epoch(self) -> int | None:
        """The number of updates in an epoch; None where the training split has no length."""
        return data.length(self.source("train"), self.batch_size)

    @property
    def metric(self) -> str:
        """The name of the first metric."""
        return next(iter(self.metrics), "loss")

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value of the first metric is better."""
        return bool(self.metrics) and self.metric not in self.lower_is_better

    def scores(self) -> dict[str, Callable[[Any, Any], Any]]:
        """Returns name -> metric, at least one: of (output, batch) where the task has `output`, else of (model, batch)."""
        return dict(self.metrics) or {"loss": self.criterion or self.loss}

    def measure(self, model: Any, batch: Any) -> tuple[Any, ...]:
        """Returns the loss and each metric of a batch; from one forward pass where the task has `output`."""
        if self.output is None or self.criterion is None:
            return tuple(f(model, batch) for f in (self.loss, *self.scores().values()))
        output = self.output(model, batch)
        loss = self.loss(model, batch) if self._overrides("loss", "criterion") else self.criterion(output, batch)
        return loss, *(score(output, batch) for score in self.scores().values())

    def _overrides(self, name: str, other: str) -> bool:
        """Whether `name` is defined nearer to this object than `other`: by itself or by a class that comes before."""
        places = [self.__dict__, *map(vars, type(self).__mro__)]
        return next(i for i, p in enumerate(places) if name in p) < next(i for i, p in enumerate(places) if other in p)

    def source(self, split: str) -> Any:
        """Returns `data(split)`, checked; called once for each split."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        sources: dict[str, Any] = self.__dict__.setdefault("_sources", {})
        if split not in sources:
            sources[split] = data.check_source(split, self.data(split), self.batch_size)
        return sources[split]

    def generators(self, split: str | None = None) -> list[Any]:
        """Returns the random generators that a split's source holds; without a split, those of the rest of the task."""
        held: dict[str | None, list[Any]] = self.__dict__.setdefault("_generators", {})
        if split not in held:
            apart = [self.__dict__[name] for name in ("_given", *_LAZY) if name in self.__dict__]
            held[split] = held_by(self, apart) if split is None else held_by(self.source(split))
        return held[split]

    def start(self, seed: int) -> Any:
        """Returns the network of a run, initialised by its seed, in training mode.  Raises what `check_network` raises."""
        with Generators(seed, "init", held=self.generators()):
            network = self.model()
        check_network(self.name, network)
        return copy.deepcopy(network).train()  # a build() that returns the same module twice still gives each run its own

    def init(self, seed: int) -> Params:
        """Returns the parameters with which a run starts."""
        _ = self._frame  # built now: under vmap, where `apply` may be called, nothing may draw
        return {name: p.detach() for name, p in self.start(seed).named_parameters()}

    def parameter_roles(self) -> dict[str, Role]:
        """Returns name -> `Role` of every parameter, found by running the network on a batch; a copy of what was found once.

        Raises ValueError for an entry of `roles` that no name matches.
        """
        if "_roles" not in self.__dict__:
            self._roles = self._find_roles()
        return dict(self._roles)

    def _find_roles(self) -> dict[str, Role]:
        model = self.start(0)

        def run(model: Any) -> Any:
            self.begin(model, "train")
            return (self.output or self.loss)(model, self._sample[0])

        with Generators(0, "evaluation", held=[*self.generators(), *self.generators("train")]):
            return find_roles.find(model, run if self._sample else None, given=self.roles)

    def batches(self, seed: int) -> Iterator[Any]:
        """Yields training batches without end, in an order that depends on the seed alone."""
        return data.epochs(self.source("train"), self.batch_size, seed, self.generators("train"))

    def stream(self, seed: int, model: Any) -> Iterator[Any]:
        """Yields the same for a run: `begin(model, "train")` is called at the start of each epoch."""
        begin = functools.partial(self.begin, model, "train")
        return data.epochs(self.source("train"), self.batch_size, seed, self.generators("train"), begin)

    def evaluation(self, split: str) -> Iterable[Any]:
        """Returns the batches on which a split is evaluated; a sample for a training split without order or with many rows."""
        source = self.source(split)
        if split != "train" or (isinstance(source, Dataset) and data.rows_in(source) <= ROWS):
            return data.in_order(source, self.evaluation_batch_size)
        return self._sample

    @functools.cached_property
    def _sample(self) -> list[Any]:
        return data.sample(self.source("train"), self.batch_size, self.generators("train"))

    @functools.cached_property
    def training_sample(self) -> list[Any] | None:
        """Batches of about as many rows of the training split as the validation split has, the same for all runs.

        None where the training split has no more, and for a task with an `evaluate` of its own.
        """
        if self._overrides("evaluate", "training_sample"):
            return None
        most, source = self.split_size("validation"), self.source("train")
        batches: list[Any] = []
        rows = 0.0
        with Generators(0, "evaluation", held=[*self.generators(), *self.generators("train")]):
            if isinstance(source, Dataset) and most < data.rows_in(source) < math.inf:
                return list(data.in_order(data.some(source, int(most)), self.evaluation_batch_size))
            for batch in self.evaluation("train"):
                if rows >= most:
                    return batches
                batches.append(batch)
                rows += self.rows(batch)
        return None

    @property
    def has_test_split(self) -> bool:
        """Whether the test split is other data than the validation split."""
        given = getattr(self, "_given", {})
        return not given or given["test"] is not given["validation"]

    def split_size(self, split: str) -> float:
        """Returns the number of rows on which a split is evaluated; infinity for a loader of unknown length."""
        sizes: dict[str, float] = self.__dict__.setdefault("_sizes", {})
        if split not in sizes:
            batches, source = self.evaluation(split), self.source(split)
            if isinstance(batches, list) or not isinstance(source, Dataset | DataLoader):
                with Generators(0, "evaluation", held=[*self.generators(), *self.generators(split)]):
                    sizes[split] = float(sum(self.rows(batch) for batch in batches))
            else:
                sizes[split] = data.rows_in(source)
        return sizes[split]

    def update_size(self) -> float:
        """Returns the number of rows in a batch of training; NaN where there is none."""
        if self.batch_size is not None and isinstance(self.source("train"), Dataset):
            return float(self.batch_size)
        return float(self.rows(self._sample[0])) if self._sample else math.nan

    def full(self, split: str) -> Any:
        """Returns the batches of `evaluation(split)` as one.  Raises ValueError where they cannot be joined."""
        with Generators(0, "evaluation", held=self.generators(split)):
            return data.concatenate(self.evaluation(split))

    @torch.no_grad()
    def evaluate(self, model: Any, split: str, /, *, sample: bool = False) -> tuple[float, ...]:
        """Returns the loss and then each metric, on a whole split, in evaluation mode; the model is left as it was.

        sample: on the training sample, where there is one.
        """
        sums, weight = [0.0] * (1 + len(self.scores())), 0.0
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        with untouched(model), Generators(0, "evaluation", held=[*self.generators(), *self.generators(split)]):
            if self.recalibrate:
                self._recalibrate(model, device)
            self.begin(model, split)
            for batch in (self.training_sample if sample else None) or self.evaluation(split):
                batch, rows = self.to(batch, device), float(self.rows(batch))
                sums = [s + rows * float(value) for s, value in zip(sums, self.measure(model, batch), strict=True)]
                weight += rows
        return tuple(s / weight if weight else math.nan for s in sums)

    def _recalibrate(self, model: Any, device: torch.device) -> None:
        """Takes BatchNorm's running statistics anew, as the weights are now, on the first training batches."""
        with collecting(model) as found:
            self.begin(model, "train")
            for batch in itertools.islice(self._sample, self.recalibrate if found else 0):
                self.measure(model, self.to(batch, device))

    def apply(self, function: Callable[[Any, Any], Any], params: Params, batch: Any, *, training: bool = True) -> Any:
        """Returns function(model, batch) with `params` in place of the model's own: pure, for torch.func."""
        frame = self._frame.train(training)
        return functional_call(frame, {f"model.{name}": p for name, p in params.items()}, (function, batch))

    @functools.cached_property
    def _frame(self) -> Frame:
        return Frame(self.start(0))

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes without those that follow from others."""
        lazy = {*_LAZY, *(["steps"] if self.epochs is not None else [])}
        return {name: value for name, value in self.__dict__.items() if name not in lazy}
