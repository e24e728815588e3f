"""Checkpoints of `sandbox.Optimizer`: tensors, numbers and texts only, exact, and independent of the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from sandbox.blocks.base import show

if TYPE_CHECKING:
    from sandbox.optimizer import Optimizer


def pack(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """torch's state_dict with each recipe as the texts of its slots, and what else a resumed run needs."""
    groups = []
    for group in state_dict["param_groups"]:
        recipe = group["recipe"]
        plain = {k: v for k, v in group.items() if isinstance(v, Tensor) or not callable(v)}
        groups.append({**plain, "recipe": {"name": recipe.name, **_structure(group)}})
    state = {key: apart(value) for key, value in state_dict["state"].items()}
    extra = {
        "skipped_steps": optimizer.skipped_steps,
        "maximize": optimizer.maximize,
        "generator": optimizer.generator.get_state(),
        "numbers_before": optimizer.numbers_before(),
    }
    return {**state_dict, "state": state, "param_groups": groups, "sandbox": extra}


def apart(state: dict[str, Any]) -> dict[str, Any]:
    """A state whose tensors are no views of an arena, each of which would carry all of it into a pickle."""

    def own(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) and value.untyped_storage().nbytes() > value.nbytes else value

    return {name: own(value) for name, value in state.items()}


def unpack(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Copies a checkpoint into an optimizer; nothing is changed where it does not fit."""
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        changed = hook(optimizer, state_dict)
        state_dict = state_dict if changed is None else changed
    if not {"state", "param_groups"} <= set(state_dict):
        raise ValueError(f"not a state_dict of an optimizer: it has {', '.join(map(str, state_dict)) or 'nothing'}")
    pairs = _matched(optimizer, state_dict)
    saved = state_dict["state"]
    for key, p, name in pairs:
        _check_state(optimizer.state[p], saved.get(key), name)
    for group, old in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        for key, value in old.items():
            if key not in ("params", "param_names", "recipe"):
                _assign(group, key, value)
    for key, p, _ in pairs:
        for name, value in saved[key].items():
            optimizer.state[p][name].copy_(value)
    extra = state_dict.get("sandbox", {})
    optimizer.skipped_steps = extra.get("skipped_steps", optimizer.skipped_steps)
    optimizer.maximize = extra.get("maximize", optimizer.maximize)
    optimizer.take_numbers_before(extra.get("numbers_before", {}))
    if "generator" in extra:
        optimizer.generator.set_state(extra["generator"].cpu())
    for post in optimizer._optimizer_load_state_dict_post_hooks.values():
        post(optimizer)


def _structure(group: dict[str, Any]) -> dict[str, str]:
    """The recipe's structure, and whether its rate is a number or which function of t."""
    lr = group["lr"]
    function = callable(lr) and not isinstance(lr, Tensor)
    return {**group["recipe"].structure(), "lr": f"function of t {show(lr)}" if function else "number"}


def _matched(optimizer: Optimizer, state_dict: dict[str, Any]) -> list[tuple[Any, Tensor, str]]:
    """(key in the checkpoint, parameter, its name), after checking that groups and recipes agree."""
    mine, old = optimizer.param_groups, state_dict["param_groups"]
    if len(mine) != len(old):
        raise ValueError(f"the checkpoint has {len(old)} parameter groups, the optimizer {len(mine)}")
    pairs = []
    for index, (group, saved) in enumerate(zip(mine, old, strict=True)):
        if len(group["params"]) != len(saved["params"]):
            raise ValueError(
                f"group {index}: the checkpoint has {len(saved['params'])} parameters, the optimizer {len(group['params'])}"
            )
        if not isinstance(saved.get("recipe"), dict):
            raise ValueError(f"group {index}: no recipe in the checkpoint; it is not one of sandbox.Optimizer")
        here = _structure(group)
        differing = [
            f"{slot}: {saved['recipe'].get(slot)} there, {here[slot]} here"
            for slot in here
            if saved["recipe"].get(slot) != here[slot]
        ]
        if differing:
            raise ValueError(
                f"group {index}: the checkpoint belongs to recipe {saved['recipe'].get('name')!r}, which differs from "
                f"{group['recipe'].name!r} in {'; '.join(differing)}"
            )
        names = [optimizer._name(index, i) for i in range(len(group["params"]))]
        pairs += list(zip(saved["params"], group["params"], names, strict=True))
    return pairs


def _check_state(mine: dict[str, Tensor], saved: dict[str, Tensor] | None, name: str) -> None:
    if saved is None:
        raise ValueError(f"the checkpoint has no state of parameter {name}")
    for key, value in mine.items():
        if key not in saved:
            raise ValueError(f"the checkpoint lacks the state {key!r} of parameter {name}")
        if saved[key].shape != value.shape:
            raise ValueError(
                f"state {key!r} of parameter {name}: shape {tuple(saved[key].shape)} there, {tuple(value.shape)} here"
            )


def _assign(group: dict[str, Any], key: str, value: Any) -> None:
    """Numbers held as tensors are filled and never replaced, so that whoever holds them sees the change."""
    if isinstance(group.get(key), Tensor):
        group[key].fill_(float(value))
    else:
        group[key] = value.clone() if isinstance(value, Tensor) else value
