"""`Optimizer`: a recipe behind the face of `torch.optim.Optimizer`.  No mathematics here.

    optimizer = sandbox.Optimizer(model.parameters(), "apollo", lr=0.01)

Every number of the recipe is an entry of the parameter group under its dotted name ("rectifier.sigma", "curvature.eps"), and
may differ between groups and be changed at any time.  Two have the names that torch's schedulers know: the moment's first
number is "momentum", and the rate of weight decay is "weight_decay".
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from sandbox import backends, checkpoint, hessian, kernel, lookup, suggest
from sandbox.backends import Backend, Cohort, Step
from sandbox.blocks.base import show
from sandbox.entries import Entries
from sandbox.recipe import Recipe, global_norm

if TYPE_CHECKING:
    from sandbox.probes import Watch

NonFinite = Literal["raise", "skip", "pass"]
_OWN = ("params", "param_names", "lr", "recipe")
# Numbers of torch's optimizers that a recipe may not have; unlike a scheduler's own entries they mean something to a user.
_TORCHS = ("weight_decay", "momentum", "betas", "eps", "alpha", "dampening", "nesterov", "amsgrad", "lr_decay", "rho")


class Optimizer(torch.optim.Optimizer):
    """Trains parameters with a recipe.

    params: tensors, (name, tensor) pairs or groups, as for any torch optimizer; a group may have its own "lr", numbers and
        "recipe".
    recipe: a Recipe, a variant's name, a TOML file or "module:attribute".
    lr: η, a float, a 0-d tensor or a function of t; default the recipe's own.
    backend: how a step runs: "eager" (the reference), "compiled" (Inductor), "scripted" (TorchScript), or a Backend.
    flat: with the compiled backend, make parameters views of one buffer, so that nothing is copied back.
    maximize: climb instead of descend.
    nonfinite: what to do where a gradient holds NaN or infinity: "raise" (FloatingPointError naming the parameters; nothing
        has changed), "skip" (leave everything as it is and count it in `skipped_steps`), or "pass" (compute with it, as
        torch.optim does, and save the check).
    seed: of the random probes that second-order recipes draw; their state is part of `state_dict`.
    numbers: any number of the recipe by its name in the group, as weight_decay=1e-4 or **{"rectifier.sigma": 0.1}.  These and
        lr hold for all groups that do not have their own, also for those with a recipe of their own.

    `watch`: a `sandbox.probes.Watch` that measures inside steps; None at first, and not kept by pickle or state_dict.

    State is made at construction: `opt.state[p]["moment.m"]`, `["curvature.B"]`, …, float32 where the parameter has fewer bits.
    A tensor without a gradient keeps its state; one that joins late counts its own steps.  Under scope "global" the tensors of
    one group that have made the same number of steps, the last one at the same rate, share their scalar.

    Raises TypeError for complex, integer or sparse tensors, and ValueError for unknown or impossible numbers.
    """

    def __init__(
        self,
        params: Iterable[Any],
        recipe: str | Recipe,
        lr: float | Tensor | Callable[[Any], Any] | None = None,
        *,
        backend: str | Backend = "eager",
        flat: bool = False,
        maximize: bool = False,
        nonfinite: NonFinite = "raise",
        seed: int = 0,
        **numbers: Any,
    ) -> None:
        if nonfinite not in ("raise", "skip", "pass"):
            raise ValueError(suggest.unknown("value of nonfinite", str(nonfinite), ("raise", "skip", "pass")))
        recipe = lookup.recipe(recipe)
        _check_keys(recipe, numbers)
        self.maximize, self.nonfinite, self.skipped_steps = bool(maximize), nonfinite, 0
        self.flat, self._backend = bool(flat), backends.get(backend, flat=flat)
        # by group: which parameters have a gradient, the cohorts, and all states when they were made
        self._cohorts: dict[int, tuple[list[bool], list[Cohort], list[Any]]] = {}
        self._before: dict[int, dict[Tensor, Recipe]] = {}
        self._touched = [False]  # by someone who put another tensor into a state
        self.watch: Watch | None = None
        self.generator = torch.Generator().manual_seed(seed)
        self._resolved: dict[int, tuple[Any, Recipe]] = {}
        self._paths: dict[int, tuple[Recipe, dict[str, str]]] = {}
        given = {} if lr is None else {"lr": lr}
        self._given = {**given, **numbers}
        super().__init__(params, {"recipe": recipe, **group_hyperparameters(recipe), **numbers, **given})

    # -- groups ------------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, with its state; see the class."""
        recipe = lookup.recipe(param_group.get("recipe", self.defaults["recipe"]))
        _check_keys(recipe, param_group)
        names = group_hyperparameters(recipe)
        # what the optimizer was given by keyword holds for every group that has a number of this name
        filled = {name: self._given.get(name, value) for name, value in names.items()}
        group = {**filled, **param_group, "recipe": recipe}
        for name in names:
            if isinstance(group[name], Tensor):
                if group[name].numel() != 1:
                    raise ValueError(f"{name} must be a number or a tensor of one entry, got shape {tuple(group[name].shape)}")
                group[name] = group[name].detach().clone()  # never shared between groups: it may be changed in place
        super().add_param_group(group)
        group = self.param_groups[-1]
        for key in [key for key in group if key in self.defaults and key not in names and key != "recipe"]:
            del group[key]
        try:
            self._recipe(len(self.param_groups) - 1)
            self._rate(group, 1)
            for i, p in enumerate(group["params"]):
                self._check_parameter(p, f"parameter {self._name(len(self.param_groups) - 1, i)}")
                self.state[p] = Entries(_on_host(recipe.init_tensor(p.detach())), self._touched)
        except Exception:
            self.param_groups.pop()
            raise

    def _check_parameter(self, p: Tensor, name: str) -> None:
        if p.is_complex():
            raise TypeError(f"{name} is complex ({p.dtype}); train torch.view_as_real of it instead")
        if not p.is_floating_point():
            raise TypeError(f"{name} has dtype {p.dtype}; only floating-point parameters can be trained")
        if p.layout != torch.strided:
            raise TypeError(f"{name} is sparse ({p.layout}); only dense parameters can be trained")

    def _name(self, group: int, i: int) -> str:
        names = self.param_groups[group].get("param_names")
        return repr(names[i]) if names else f"{i} of group {group}"

    def _names(self, group: int, cohort: Cohort) -> list[str]:
        """The names of a cohort's tensors; without names of their own, "group.place"."""
        names = self.param_groups[group].get("param_names")
        return [names[i] if names else f"{group}.{i}" for i in cohort.members]

    def _recipe(self, index: int) -> Recipe:
        """The group's recipe with the numbers that its entries have now."""
        group = self.param_groups[index]
        known = self._paths.get(index)
        if known is None or known[0] is not group["recipe"]:
            known = self._paths[index] = group["recipe"], group_paths(group["recipe"])
        values = {path: group[name] for name, path in known[1].items()}
        stamp = (group["recipe"], len(group), *(float(v) if isinstance(v, Tensor) else v for v in values.values()))
        if self._resolved.get(index, (None,))[0] != stamp:
            _check_keys(group["recipe"], {k: v for k, v in group.items() if "." in k or k in _TORCHS})
            plain = {path: float(v) if isinstance(v, Tensor) else v for path, v in values.items()}
            self._resolved[index] = stamp, group["recipe"].with_hyperparameters(plain)
        return self._resolved[index][1]

    def _rate(self, group: dict[str, Any], t: int) -> float:
        lr = group["lr"]
        if isinstance(lr, bool | str):
            raise TypeError(f"lr must be a number, a tensor or a function of t, got {lr!r}")
        lr = float(lr(t) if callable(lr) and not isinstance(lr, Tensor) else lr)
        if not 0 <= lr < math.inf:
            raise ValueError(f"lr must lie in [0, inf), got {show(lr)}")
        return lr

    # -- the step ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step; returns what the closure returned.

        closure: computes the loss and, for first-order recipes, calls backward(), as for any torch optimizer.  For second-order
            recipes it returns the loss and leaves backward() to the step, which sets p.grad.
        Raises TypeError for a sparse gradient, FloatingPointError for NaN or infinity (see `nonfinite`), RuntimeError for a
        second-order recipe without what it needs.
        """
        loss, products = self._evaluate(closure)
        # a parameter that no Hessian-vector product reaches (a frozen one) makes no step of second order, whatever its p.grad
        grads = [
            [p.grad if not group["recipe"].second_order or p in products else None for p in group["params"]]
            for group in self.param_groups
        ]
        self._check_layout(grads)
        if self.maximize:
            grads = [[None if g is None else -g for g in row] for row in grads]
        check = self.nonfinite != "pass"
        norm = None
        if any(g["recipe"].needs_norm for g in self.param_groups) and any(g is not None for row in grads for g in row):
            norm = global_norm([g for row in grads for g in row if g is not None])
        # everything that can be wrong with a number is found before the first tensor changes
        planned = []
        for index, group in enumerate(self.param_groups):
            recipe, row = self._recipe(index), grads[index]
            for cohort in self._in_step(index, row):
                lr = self._rate(group, cohort.steps + 1)
                now = kernel.at(recipe, cohort.steps + 1) if recipe.has_schedules else recipe
                now.decay.check_lr(lr)
                mine = row if len(cohort.members) == len(row) else [row[i] for i in cohort.members]
                hessians = [products.get(p) for p in cohort.params] if products else [None] * len(cohort.params)
                old = self._old(cohort, group, recipe) if recipe.recalls_direction else None
                norm_of = norm if recipe.needs_norm else None
                planned.append((index, cohort, Step(now, lr, cast(Any, mine), cast(Any, hessians), old, norm_of)))
        totals = [total for _, cohort, step in planned for total in self._backend.load(cohort, step, check=check)]
        if check and not self._finite(totals, grads, "gradient"):
            return loss
        if check and products:
            rows = [[products.get(p) for p in group["params"]] for group in self.param_groups]
            if not self._finite(backends.totals(list(products.values())), rows, "Hessian-vector product"):
                return loss
        if self.watch is not None:
            self.watch.observe([(self._names(index, cohort), cohort, step) for index, cohort, step in planned])
        for index, cohort, step in planned:
            self._backend.step(cohort, step)
            if step.old is not None:
                cohort.recipe, cohort.base = step.recipe, self.param_groups[index]["recipe"]
        self._touched[0] = False
        return loss

    @staticmethod
    def _old(cohort: Cohort, group: dict[str, Any], recipe: Recipe) -> Recipe:
        """The recipe with the numbers of the cohort's last step; one exchanged since as if it had made that step."""
        if cohort.recipe is not None and cohort.base is group["recipe"]:
            return cohort.recipe
        return kernel.at(recipe, max(cohort.steps, 1)) if recipe.has_schedules else recipe

    def _evaluate(self, closure: Callable[[], Any] | None) -> tuple[Any, dict[Tensor, Tensor]]:
        """The closure's result, and z ⊙ Hz for the groups whose recipe is of second order."""
        second = [g for g in self.param_groups if g["recipe"].second_order]
        if not second:
            if closure is None:
                return None, {}
            with torch.enable_grad():
                return closure(), {}
        if closure is None:
            raise RuntimeError(f"recipe {second[0]['recipe'].name!r}: {hessian.HOW}")
        with torch.enable_grad():
            loss = closure()
        params = [p for g in self.param_groups for p in g["params"] if p.requires_grad]
        grads, z, Hz = hessian.hutchinson(loss, params, self.generator)
        curvature = {p: g["recipe"].curvature for g in second for p in g["params"]}
        products = {}
        for p, g, probe, product in zip(params, grads, z, Hz, strict=True):
            p.grad = g
            if p in curvature and product is not None:
                h = curvature[p].hessian(probe, product)
                products[p] = -h if self.maximize else h
        return loss.detach(), products

    def _check_layout(self, grads: list[list[Tensor | None]]) -> None:
        for index, row in enumerate(grads):
            for i, g in enumerate(row):
                if g is not None and g.layout is not torch.strided:
                    raise TypeError(
                        f"the gradient of parameter {self._name(index, i)} is sparse ({g.layout}); recipes need dense ones: "
                        "use sparse=False in the layer that makes it"
                    )

    def _finite(self, totals: list[Tensor], tensors: list[list[Tensor | None]], what: str) -> bool:
        """Whether all tensors are finite, if their totals do not show it already; raises or counts as `nonfinite` says."""
        if backends.all_finite(totals):
            return True
        # a sum may overflow where every entry is finite
        named = [
            self._name(index, i)
            for index, row in enumerate(tensors)
            for i, g in enumerate(row)
            if g is not None and not bool(g.isfinite().all())
        ]
        if not named:
            return True
        if self.nonfinite == "skip":
            self.skipped_steps += 1
            return False
        raise FloatingPointError(
            f"NaN or infinity in the {what} of parameter {', '.join(named[:5])}{' and others' if len(named) > 5 else ''}; "
            'nothing was changed (nonfinite="skip" skips and counts such steps, "pass" computes with them)'
        )

    def _in_step(self, index: int, grads: list[Tensor | None]) -> list[Cohort]:
        """The group's tensors that have a gradient, by steps made, last rate and last numbers; kept while the same ones have
        one and nobody has put others in their place."""
        group = self.param_groups[index]
        present, params = [g is not None for g in grads], group["params"]
        kept = self._cohorts.get(index)
        if kept is not None and kept[0] == present and self._stand(kept, params):
            return kept[1]
        before = self._last_recipes(index)
        cohorts: dict[tuple[Any, ...], Cohort] = {}
        for i, p in enumerate(params):
            if present[i] and p.numel():
                alone = Cohort(
                    [], [], [], int(self.state[p]["step"]), float(self.state[p]["lr"]), before.get(p), group["recipe"]
                )
                cohort = cohorts.setdefault(alone.key, alone)
                cohort.members.append(i)
                cohort.params.append(p)
                cohort.states.append(self.state[p])
        self._cohorts[index] = present, list(cohorts.values()), list(self.state.values())
        self._before[index] = before
        return self._cohorts[index][1]

    def _stand(self, kept: tuple[list[bool], list[Cohort], list[Any]], params: list[Tensor]) -> bool:
        """Whether the cohorts are still what they were made from, and none has caught up with another."""
        _, cohorts, states = kept
        if self._touched[0] or not backends.identical(self.state.values(), states):
            return False
        for cohort in cohorts:
            if not cohort.stands(params if len(cohort.members) == len(params) else [params[i] for i in cohort.members]):
                return False
        return len(cohorts) < 2 or len({cohort.key for cohort in cohorts}) == len(cohorts)

    def _last_recipes(self, index: int) -> dict[Tensor, Recipe]:
        """The recipe with the numbers of its last step, for each tensor of a group whose numbers are known to have changed."""
        group = self.param_groups[index]
        found = dict(self._before.get(index, {}))
        for cohort in self._cohorts.get(index, ([], [], []))[1]:
            if cohort.recipe is not None and cohort.base is group["recipe"]:
                found |= dict.fromkeys(cohort.params, cohort.recipe)
        return {p: found[p] for p in group["params"] if p in found and int(self.state[p]["step"])}

    def numbers_before(self) -> dict[int, dict[str, float]]:
        """Place of a parameter -> the numbers of its last step, where the group has others by now and d depends on them."""
        found, place = {}, 0
        for index, group in enumerate(self.param_groups):
            before, now = self._last_recipes(index), self._recipe(index)
            for p in group["params"]:
                if p in before and before[p].leaves != kernel.at(now, int(self.state[p]["step"])).leaves:
                    found[place] = {name: float(value) for name, value in before[p].hyperparameters().items()}
                place += 1
        return found

    def take_numbers_before(self, numbers: dict[int, dict[str, float]]) -> None:
        """The inverse of `numbers_before`."""
        self._cohorts, self._before, place = {}, {}, 0
        for index, group in enumerate(self.param_groups):
            for p in group["params"]:
                if place in numbers:
                    made = kernel.at(self._recipe(index), max(int(self.state[p]["step"]), 1))
                    self._before.setdefault(index, {})[p] = made.with_hyperparameters(numbers[place])
                place += 1

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs; only tensors, numbers and texts, so torch.load(weights_only=True) reads it."""
        return checkpoint.pack(self, super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes from a `state_dict`, exactly.  Numbers in the groups are taken from it; what an old one lacks stays.

        Raises ValueError where it belongs to another recipe (naming the slots that differ), to other shapes or groups.
        """
        checkpoint.unpack(self, state_dict)

    def __getstate__(self) -> dict[str, Any]:
        own = ("maximize", "nonfinite", "skipped_steps", "flat", "_backend", "_given")
        mine = {name: getattr(self, name) for name in own}
        kept = super().__getstate__()
        kept["state"] = defaultdict(dict, {p: checkpoint.apart(state) for p, state in kept["state"].items()})
        return {**kept, **mine, "numbers_before": self.numbers_before(), "generator_state": self.generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self.generator = torch.Generator()
        self.generator.set_state(state.pop("generator_state"))
        numbers = state.pop("numbers_before")
        super().__setstate__(state)
        self._resolved, self._paths, self.watch, self._touched = {}, {}, None, [False]
        for p, entries in self.state.items():
            self.state[p] = Entries(entries, self._touched)
        self.take_numbers_before(numbers)

    def __repr__(self) -> str:
        groups = [f"{g['recipe'].name} at lr {g['lr']} on {len(g['params'])} tensors" for g in self.param_groups]
        return f"sandbox.Optimizer({'; '.join(groups)}; backend {self._backend.name})"


def group_paths(recipe: Recipe) -> dict[str, str]:
    """Name in a parameter group -> dotted path of the number, for every number of a recipe but lr."""
    paths = {path: path for path in recipe.hyperparameters() if path.partition(".")[0] != "lr"}
    moments = [path for path in paths if path.count(".") == 1 and path.startswith("moment.")]
    decays = [path for path in paths if path.rpartition(".")[2] == "weight_decay"]
    for alias, path in [
        ("momentum", moments[0] if moments else ""),
        ("weight_decay", next(iter(sorted(decays)), "")),
    ]:
        if path:
            paths = {alias if name == path else name: p for name, p in paths.items()}
    return paths


def group_hyperparameters(recipe: Recipe) -> dict[str, Any]:
    """What a parameter group of this recipe holds: "lr" and every number by its name there."""
    values = recipe.hyperparameters()
    return {"lr": recipe.lr, **{name: values[path] for name, path in group_paths(recipe).items()}}


def _check_keys(recipe: Recipe, given: dict[str, Any]) -> None:
    names = group_paths(recipe)
    for key in given:
        if key in names or key in _OWN or not isinstance(key, str):
            continue
        if key == "weight_decay":
            raise ValueError(
                f"recipe {recipe.name!r} has no weight decay; give it some: recipe.replace(decay=Decoupled()), "
                "decay=AdamWDecay() or gradient=(L2Decay(),)"
            )
        renamed = {path: name for name, path in names.items() if name != path}
        if key in renamed:
            raise ValueError(f"{key!r} is called {renamed[key]!r} in a parameter group")
        raise ValueError(suggest.unknown("number of a parameter group", key, ["lr", *names]))


def _on_host(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The step count and last rate are read by the host in every step, so they live there."""
    return {name: value.cpu() if name in ("step", "lr") else value for name, value in state.items()}


__all__ = ["Optimizer", "group_hyperparameters", "group_paths"]
