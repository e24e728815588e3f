"""A parameter's state as a dict that says when someone puts another tensor into it.

A backend keeps views of the tensors in it.  To look in every step whether they are still there would cost a tenth of a compiled
step of a model of many tensors.
"""

from __future__ import annotations

from typing import Any


class Entries(dict[str, Any]):
    """`touched` is shared by all states of an optimizer: a list of one flag.  Copies and pickles are plain dicts."""

    __slots__ = ("touched",)

    def __init__(self, values: dict[str, Any], touched: list[bool]) -> None:
        super().__init__(values)
        self.touched = touched

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _noting(name: str) -> Any:
    method = getattr(dict, name)

    def noted(self: Entries, *args: Any, **kwargs: Any) -> Any:
        self.touched[0] = True
        return method(self, *args, **kwargs)

    noted.__name__, noted.__doc__ = name, method.__doc__
    return noted


for _name in ("__setitem__", "__delitem__", "__ior__", "update", "setdefault", "pop", "popitem", "clear"):
    setattr(Entries, _name, _noting(_name))
