"""Other forms of a recipe: TOML (`sandbox.forms.toml`)."""

from sandbox.forms import toml

__all__ = ["toml"]
