"""`Optimizer`: a recipe behind the face of `torch.optim.Optimizer`.  No mathematics here.

    optimizer = sandbox.Optimizer(model.parameters(), "apollo", lr=0.01)

Every hyperparameter of the recipe is an entry of the parameter group under its dotted name ("rectifier.sigma",
"curvature.eps"), and may differ between groups and be changed at any time; see `sandbox.optimizer.groups`.
"""

from __future__ import annotations

import functools
import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from sandbox import backends
from sandbox.backends import Backend, Cohort, Observer, Step
from sandbox.distributed import replicas, shards
from sandbox.distributed.ranks import Ranks, Rounds, advance
from sandbox.forms import lookup
from sandbox.optimizer import checkpoint, collective, from_torch, groups, memory
from sandbox.optimizer.cohorts import Cohorts, complete, norm_of, same_objects, tidy
from sandbox.optimizer.finite import blame, not_finite
from sandbox.optimizer.inputs import ByParameter, Evaluation
from sandbox.optimizer.torch_base import Base, step_method
from sandbox.recipe import Recipe, find_roles, kernel, parts, pure, trial
from sandbox.recipe.find_roles import Role
from sandbox.utils import suggest

_CALLED = {
    "hessian": "Hessian-vector product",
    "product": "Hessian-vector product",
    "sampled": "gradient at drawn labels",
    "displaced": "gradient at the displaced point",
    "G": "Kronecker factor G",
    "A": "Kronecker factor A",
}

NonFinite = Literal["raise", "skip", "pass"]


class Optimizer(Base):
    """Trains parameters with a recipe.

    params: a model, or tensors, (name, tensor) pairs or groups, as for any torch optimizer; a group may have its own "lr",
        hyperparameters and "recipe".  Of a model the roles of its parameters are found, for a recipe with roles (muon).
    recipe: a Recipe, a variant's name, a TOML file or "module:attribute".
    lr: η, a float, a 0-d tensor or a function of t; default the recipe's own.
    backend: how a step runs: "eager" (no compiler), "compiled" (Inductor), "scripted" (TorchScript), "reference" (tensor by
        tensor, as the equations stand), or a Backend.
    flat: with the compiled backend, make parameters views of one buffer, so that nothing is copied back.
    process_group: the ranks that train this model together.  A second-order recipe on replicas averages over them; of DTensors
        (fully_shard, tensor parallel) and under ZeroRedundancyOptimizer it is found without.
    maximize: climb instead of descend; an entry of each group, as in torch.optim.
    nonfinite: what to do where a gradient holds NaN or infinity: "raise" (FloatingPointError naming the parameters; nothing
        has changed), "skip" (leave everything as it is and count it in `skipped_steps`), or "pass" (compute with it, as
        torch.optim does, and save the check).
    state_dtype: torch.bfloat16 halves the state: per-coordinate states are rounded without bias (`sandbox.recipe.rounding`).
    roles: name of a parameter -> its role, as `sandbox.roles(model, batch)` finds them or as texts; with a model also regular
        expressions searched in names, before what is found; {}: tensors with two axes or more are matrices, without a warning.
    seed: of that rounding, and of the random vectors that second-order recipes draw.
    hyperparameters: any of the recipe's by its name in the group, as weight_decay=1e-4 or **{"rectifier.sigma": 0.1}.  These
        and lr hold for all groups that do not have their own, also for those with a recipe of their own.  As trainers give
        them, here and in groups: `betas` and `eps` are translated where the recipe has them, `fused` and `foreach` are accepted
        and change nothing, since `backend` says how a step runs.

    `watch`: a `sandbox.probes.Watch` that measures inside steps; None at first, and not kept by pickle or state_dict.

    State is made at construction: `opt.state[p]["moment.m"]`, `["curvature.B"]`, …, float32 where the parameter has fewer bits,
    and on the CPU, 0-d, "step", "lr" and the hyperparameters with which the last step was made.  As in torch.optim a tensor put
    in the place of another is used, and what is removed is made anew.  A tensor without a gradient keeps its state; one that
    joins late counts its own steps.  Under scope "global" the tensors of one group that have made the same number of steps, the
    last one with the same hyperparameters, share their scalar.

    A recipe with a readout evaluates other weights than it trains: `eval()` before validation and before a model is saved for
    use, `train()` before the next step.

    Raises TypeError for complex, integer or sparse tensors, and ValueError for unknown or impossible hyperparameters.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        recipe: str | Recipe,
        lr: float | Tensor | Callable[[Any], Any] | None = None,
        *,
        backend: str | Backend = "eager",
        flat: bool = False,
        process_group: ProcessGroup | None = None,
        maximize: bool = False,
        nonfinite: NonFinite = "raise",
        state_dtype: torch.dtype | None = None,
        roles: Mapping[str, str | Role] | None = None,
        seed: int = 0,
        **hyperparameters: Any,
    ) -> None:
        if nonfinite not in ("raise", "skip", "pass"):
            raise ValueError(suggest.unknown("value of nonfinite", str(nonfinite), ("raise", "skip", "pass")))
        recipe = lookup.recipe(recipe)
        hyperparameters = from_torch.translated(recipe, hyperparameters)
        groups.check_keywords(recipe, hyperparameters)
        self._backend = backends.get(backend, flat=flat, state_dtype=state_dtype)
        self.nonfinite, self.flat, self.state_dtype = nonfinite, bool(flat), state_dtype
        self._process_group, self._dealt = process_group, replicas.partitioning()
        # what wrappers (ZeroRedundancyOptimizer) copy into groups, and the only values that it may have there
        self._whole = {"backend": backend, "flat": flat, "nonfinite": nonfinite, "state_dtype": state_dtype}
        given = hyperparameters if lr is None else {**hyperparameters, "lr": lr}
        self._roles = find_roles.of_parameters(params, recipe, roles)
        params = params.named_parameters() if isinstance(params, nn.Module) else params
        self._given = {**given, "maximize": bool(maximize), "seed": seed}
        self._forget()
        super().__init__(params, {"recipe": recipe, **groups.hyperparameters(recipe), **given})

    def _forget(self) -> None:
        """Drops every cache: what it held is worked out again from groups, parameters and states."""
        self._cohorts: dict[int, Cohorts] = {}
        self._entries: list[Any] = []
        self._resolved: dict[int, tuple[Recipe, tuple[str, ...], Any, Recipe]] = {}
        self._members: tuple[Any, Ranks | None] | None = None
        self.watch: Observer | None = None

    # -- groups ------------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, with its state; see the class.  Raises ValueError for a parameter that the group lists twice."""
        for name, value in self._whole.items():
            if (given := param_group.get(name, value)) != value:
                raise ValueError(f"{name} is an option of the whole optimizer, {value!r}; a group cannot have {given!r}")
        if self.param_groups and self.evaluating:
            raise RuntimeError("a group is added to an optimizer in train mode: call train() first")
        recipe = lookup.recipe(param_group.get("recipe", self.defaults["recipe"]))
        group = {key: value for key, value in param_group.items() if key not in self._whole}
        group = from_torch.translated(recipe, group)
        trial.check(recipe)
        groups.check_entries(recipe, group, new=True)
        group["params"] = groups.listed(group["params"])
        super().add_param_group(groups.filled(group, recipe, self._given))
        index, group = len(self.param_groups) - 1, self.param_groups[-1]
        if self._roles is not None and recipe.roles and "roles" not in group:
            group["roles"] = [self._roles.get(name, "") for name in group.get("param_names", group["params"])]
        for key in self.defaults:  # torch fills them in, and they may belong to another recipe than the group's
            if key not in param_group and key not in ("lr", "recipe", *groups.paths(recipe)):
                del group[key]
        try:
            groups.current(group)
            groups.rate(group, 1)
            groups.check_roles(group, recipe, [groups.name(self.param_groups, index, i) for i in range(len(group["params"]))])
            for i, p in enumerate(group["params"]):
                groups.check_parameter(p, groups.name(self.param_groups, index, i))
            each = groups.recipes(group, recipe)
            for i, p in enumerate(group["params"]):
                collective.check(p, groups.name(self.param_groups, index, i), recipe, each[i], self._backend, self._dealt)
                complete(each[i], p, self.state, groups.name(self.param_groups, index, i), self.state_dtype)
        except Exception:
            self.param_groups.pop()
            raise

    def names(self, group: int, cohort: Cohort) -> list[str]:
        """The names of a cohort's tensors; without names of their own, "group.place"."""
        names = self.param_groups[group].get("param_names")
        return [names[i] if names else f"{group}.{i}" for i in cohort.members]

    def current_recipe(self, group: int) -> Recipe:
        """The recipe of group number `group` with the hyperparameters that its entries have now."""
        entries = self.param_groups[group]
        base, cached = groups.recipe_of(entries), self._resolved.get(group)
        names = cached[1] if cached is not None and cached[0] is base else tuple(groups.paths(base))
        stamp = len(entries), [float(v) if isinstance(v := entries[name], Tensor) else v for name in names]
        if cached is None or cached[0] is not base or cached[2] != stamp:
            cached = self._resolved[group] = base, names, stamp, groups.current(entries)
        return cached[3]

    def current_recipes(self, group: int) -> list[Recipe]:
        """The recipe of each parameter of group number `group`, by its role or shape, with the hyperparameters of now."""
        return groups.recipes(self.param_groups[group], self.current_recipe(group))

    @property
    def skipped_steps(self) -> int:
        """Steps left out because a gradient was not finite, where `nonfinite="skip"`."""
        return max(group["skipped_steps"] for group in self.param_groups)

    # -- the step ----------------------------------------------------------------------------------------------------

    @step_method
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step; returns what the closure returned.

        closure: computes the loss and, for first-order recipes, calls backward(), as for any torch optimizer.  For second-order
            recipes it returns the loss and leaves backward() to the step, which sets p.grad.  Recipes that look at a batch
            twice (for a second gradient, or drawn labels) call it twice, the second time with the random state of the first.
        Raises TypeError for a sparse gradient, FloatingPointError for NaN or infinity (see `nonfinite`), RuntimeError for a
        second-order recipe without what it needs.
        """
        if self.evaluating:
            raise RuntimeError(
                "the parameters are the weights to evaluate, since eval() was called: call train() before a step"
            )
        recipes = [groups.recipe_of(group) for group in self.param_groups]
        evaluation = Evaluation(closure, self.param_groups, recipes, self.state, self._process_group)
        ranks = self._ranks(recipes)
        rounds = self._rounds(recipes, evaluation, ranks)
        if ranks is not None:
            ranks.drive(rounds)
        else:
            advance(rounds, None)  # it asks for nothing
        return evaluation.loss

    def _ranks(self, recipes: list[Recipe]) -> Ranks | None:
        """The ranks that hold the tensors between them; None where this one has all that it needs."""
        joint = any(recipe.scope == "global" or recipe.analysis.needs_norm for recipe in recipes)
        key = [len(group["params"]) for group in self.param_groups], joint
        if self._members is None or self._members[0] != key:
            params = [p for group in self.param_groups for p in group["params"]]
            self._members = key, collective.ranks(params, self._process_group, self._dealt if joint else None)
        return self._members[1]

    def _rounds(self, recipes: list[Recipe], evaluation: Evaluation, ranks: Ranks | None) -> Rounds[None]:
        """One step; what must be summed over all ranks is asked for in rounds, and nothing changes before the last one."""
        inputs = evaluation.inputs
        grads = [[p.grad for p in group["params"]] for group in self.param_groups]
        for row, recipe, group in zip(grads, recipes, self.param_groups, strict=True):
            if recipe.analysis.inputs:
                # a parameter that an input does not reach (a frozen one) makes no step, whatever its p.grad
                pairs = zip(group["params"], groups.recipes(group, recipe), strict=True)
                reached = [all(p in inputs.get(name, ()) for name in one.analysis.inputs) for p, one in pairs]
                row[:] = [g if reaches else None for g, reaches in zip(row, reached, strict=True)]
            if group["maximize"]:
                row[:] = [None if g is None else -g for g in row]
        # everything that can be wrong is found before the first tensor changes
        check, needs_norm = self.nonfinite != "pass", any(recipe.analysis.needs_norm for recipe in recipes)
        if not same_objects(self._entries, self._state_entries()):
            self._cohorts = {}
        if not self._cohorts:
            memory.check(self.param_groups)
        cohorts = [(index, cohort, row) for index, row in enumerate(grads) for cohort in self._in_step(index, row, ranks)]
        if ranks is None:
            norm = norm_of(cohorts) if needs_norm else None
            planned = [(index, cohort, self._planned(index, cohort, row, inputs, norm)) for index, cohort, row in cohorts]
            for _, cohort, step in planned:
                cohort.check_shapes(step.grads)
            totals = [total for _, cohort, step in planned for total in self._backend.load(cohort, step, check=check)]
            if check and not self._finite(totals, grads, "gradient"):
                return
            for name, made in inputs.items() if check else ():
                rows = [[made.get(p) for p in group["params"]] for group in self.param_groups]
                if not self._finite(backends.totals(list(made.values())), rows, _CALLED[name]):
                    return
            if self.watch is not None:
                self.watch.observe([(self.names(index, cohort), cohort, step) for index, cohort, step in planned])
            finish: list[Callable[[], None]] = [functools.partial(self._backend.step, c, step) for _, c, step in planned]
        else:
            collective.check_watch(self.watch)
            planned = [(index, cohort, self._planned(index, cohort, row, inputs, None)) for index, cohort, row in cohorts]
            finite = (lambda totals: self._finite(totals, grads, "gradient", ranks)) if check else None
            finish = yield from collective.rounds(planned, self.param_groups, self._backend, needs_norm, finite)
        for make, (_, cohort, step) in zip(finish, planned, strict=False):  # none, where a step is skipped
            make()
            cohort.advance({name: float(value) for name, value in kernel.applied(step.recipe, step.lr).items()})
        bad = evaluation.look_again(p for _, cohort, _ in planned for p in cohort.params)
        if any(cohort.changed for _, cohort, _ in planned):
            self._entries = self._state_entries()
            for _, cohort, _ in planned:
                cohort.changed = False
        if bad and self.nonfinite == "raise":
            raise FloatingPointError("NaN or infinity in a gradient of the last batch at the point that the step has led to")

    def _state_entries(self) -> list[Any]:
        """The entries of all states, in order; each step compares them with those that the last one left.  A dict refers to
        its values, and to keys that are no strings: here they come in one call."""
        return gc.get_referents(*self.state.values())

    def _planned(
        self, index: int, cohort: Cohort, row: list[Tensor | None], inputs: dict[str, ByParameter], norm: Tensor | None
    ) -> Step:
        whole, group = self.current_recipe(index), self.param_groups[index]
        recipe = whole.member(cohort.branch)
        lr = whole.rate_of(cohort.branch, groups.rate(group, cohort.steps + 1))
        recipe = parts.at_step(recipe, cohort.steps + 1) if recipe.analysis.has_schedules else recipe
        recipe.decay.check_lr(lr)
        mine = row if len(cohort.members) == len(row) else [row[i] for i in cohort.members]
        given = {name: [inputs[name][p] for p in cohort.params] for name in recipe.analysis.inputs}
        norm = norm if recipe.analysis.needs_norm else None
        return Step(recipe, lr, cast(list[Tensor], mine), given, norm, self.state_dtype, group["seed"])

    def _in_step(self, index: int, grads: list[Tensor | None], ranks: Ranks | None) -> list[Cohort]:
        group, present, cohorts = self.param_groups[index], [g is not None for g in grads], self._cohorts.get(index)
        if cohorts is None or not cohorts.still_valid(group, present):
            part = None if ranks is None else functools.partial(shards.part, ranks=ranks.size, dealt=self._dealt is not None)
            how = self.state, functools.partial(groups.name, self.param_groups, index), part, self.state_dtype
            cohorts = self._cohorts[index] = Cohorts(group, self.current_recipe(index), present, *how)
        return cohorts.each

    def _finite(self, totals: list[Tensor], tensors: list[list[Tensor | None]], what: str, ranks: Ranks | None = None) -> bool:
        """Whether all tensors are finite; where not, raises or counts as `nonfinite` says."""
        named = not_finite(totals, self.param_groups, tensors, ranks)
        if named and self.nonfinite != "skip":
            if ranks is None and (blamed := self._blamed()):
                raise FloatingPointError(f"{blamed}; this step changed nothing")
            raise FloatingPointError(
                f"NaN or infinity in the {what} of parameter {', '.join(named[:5])}{' and others' if len(named) > 5 else ''}; "
                'nothing was changed (nonfinite="skip" skips and counts such steps, "pass" computes with them)'
            )
        skipped = self.skipped_steps + 1
        for group in self.param_groups if named else ():
            group["skipped_steps"] = skipped
        return not named

    def _blamed(self) -> str | None:
        """What the last step did to a parameter that is not finite now; None where all are finite."""
        for index, group in enumerate(self.param_groups):
            for i, (p, recipe) in enumerate(zip(group["params"], self.current_recipes(index), strict=True)):
                name = groups.name(self.param_groups, index, i)
                if not shards.is_sharded(p) and (message := blame(recipe, self.state[p], p, name)):
                    return message
        return None

    # -- which weights ------------------------------------------------------------------------------------------------

    @property
    def evaluating(self) -> bool:
        """Whether the parameters are the weights to evaluate: between `eval` and `train`."""
        return any(group["evaluating"] for group in self.param_groups)

    @torch.no_grad()
    def eval(self) -> None:
        """Puts the weights to evaluate into the parameters, as the recipe's readout says, until `train` is called.

        Those to train are kept in the state, to the bit.  Without a readout, and before a first step, both are the same.
        Until then a step raises RuntimeError.
        """
        for index, group in enumerate(() if self.evaluating else self.param_groups):
            for p, recipe in zip(group["params"], self.current_recipes(index), strict=True):
                state, part = self.state[p], shards.local(p)
                if recipe.analysis.reads_out and state.get("step", 0) > 0:
                    state[checkpoint.TRAINED] = p.detach().clone()
                    part.copy_(pure.evaluated(recipe, state, part.detach()))
        for group in self.param_groups:
            group["evaluating"] = 1

    @torch.no_grad()
    def train(self) -> None:
        """Puts the weights to train back into the parameters, after `eval`."""
        for group in self.param_groups if self.evaluating else ():
            for p in group["params"]:
                if (weights := self.state[p].pop(checkpoint.TRAINED, None)) is not None:
                    p.copy_(weights)
        for group in self.param_groups:
            group["evaluating"] = 0

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs, as a snapshot of its own: later steps do not change it.

        Only tensors, numbers and texts, so that torch.load(weights_only=True) reads it.
        """
        tidy(self.param_groups, self.state, self.state_dtype)
        return checkpoint.pack(super().state_dict(), self.param_groups)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes from a `state_dict`, exactly.  Entries of the groups are taken from it; what an old one lacks stays.

        Parameters are matched by name where both sides have names, else by their places.  One of torch.optim.Adam or AdamW
        loads into the recipe that makes its steps ("adam", "adamw", "amsgrad").
        Raises ValueError where it belongs to another recipe (naming the slots that differ), to other shapes or groups.
        """
        checkpoint.unpack(self, state_dict)

    def __getstate__(self) -> dict[str, Any]:
        tidy(self.param_groups, self.state, self.state_dtype)
        attributes = {
            name: getattr(self, name) for name in ("nonfinite", "flat", "state_dtype", "_backend", "_whole", "_given", "_roles")
        }
        states = defaultdict(dict, {p: checkpoint.snapshot(state) for p, state in self.state.items()})
        return {**super().__getstate__(), **attributes, "state": states}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._forget()
        self._process_group = self._dealt = None  # groups belong to their processes
        super().__setstate__(state)

    def __repr__(self) -> str:
        return f"sandbox.Optimizer({'; '.join(map(_shown, self.param_groups))}; backend {self._backend.name})"


def _shown(group: dict[str, Any]) -> str:
    recipe = groups.recipe_of(group)
    names = Counter(one.name for one in groups.recipes(group, recipe))
    divided = f" ({', '.join(f'{name} {n}' for name, n in names.items())})" if len(names) > 1 else ""
    return f"{recipe.name} at lr {group['lr']} on {len(group['params'])} tensors{divided}"
