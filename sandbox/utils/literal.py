"""Escapes texts from users: markup in Markdown, LaTeX and pictures, and characters that no file name holds."""

from __future__ import annotations

import re

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#$~])")


def markdown(text: str) -> str:
    """Escapes a text for Markdown, also in a cell of a table; brackets with numbers, as intervals have, stay."""
    plain = re.fullmatch(r"[^`*_<>|#$~\\]*", text) and not re.search(r"\]\s*[(\[:]", text)
    return (text if plain else _MARKDOWN.sub(r"\\\1", text)).replace("\n", " ")


def file_name(text: str) -> str:
    """Returns a name for a file or folder: all but letters, digits, underscores, dots and dashes become dashes."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "unnamed"


def latex(text: str) -> str:
    r"""Escapes a text for \text{…} in a formula."""
    return re.sub(r"([_#%&${}])", r"\\\1", text)


def picture(text: str) -> str:
    """Escapes a text for matplotlib: "$" begins no formula, "_" hides no legend entry."""
    shown = text.replace("$", r"\$")
    return f"\u200b{shown}" if shown.startswith("_") else shown
