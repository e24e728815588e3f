"""Options of a command from a settings class: names, types, defaults and help are written once, in that class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

from tyro.conf import OmitArgPrefixes, arg

from sandbox.experiments.settings import Options, fields

Command = TypeVar("Command", bound=type)


def from_settings(settings: type, **defaults: Any) -> Callable[[Command], Command]:
    """Adds an option per field of a settings class to a command, apart from fields that the command declares itself.

    defaults: those that differ on the command line.  How updates are made is a group of its own.  Nothing is checked here: the
    settings check themselves when the command builds them.
    """

    def add(command: Command) -> Command:
        declared = {f.name for f in dataclasses.fields(command)} | {f.name for f in dataclasses.fields(Options)}
        options = _options(settings, declared, defaults)
        if issubclass(settings, Options):
            updates: Any = dataclasses.make_dataclass(
                "Options", _options(Options, set(), {}), namespace={"__doc__": Options.__doc__}
            )
            options.append(("run", OmitArgPrefixes[updates], dataclasses.field(default_factory=updates)))  # type: ignore[misc]
        more = {"__doc__": command.__doc__, "__module__": command.__module__}
        return dataclasses.make_dataclass(command.__name__, options, bases=(command,), namespace=more)  # type: ignore[return-value]

    return add


def values(command: Any, settings: type) -> dict[str, Any]:
    """Returns the keyword arguments of a settings class that a command has options for."""
    given = vars(command) | (vars(command.run) if hasattr(command, "run") else {})
    return {f.name: given[f.name] for f in fields(settings) if f.name in given}


def _options(settings: type, without: set[str], defaults: dict[str, Any]) -> list[Any]:
    types = get_type_hints(settings)
    return [
        (
            f.name,
            Annotated[str if types[f.name] is Any else types[f.name], arg(help=f.metadata["help"])],
            dataclasses.field(default=defaults.get(f.name, f.default)),
        )
        for f in fields(settings)
        if f.metadata["command"] and f.name not in without
    ]
