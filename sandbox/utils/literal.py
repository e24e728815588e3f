"""Texts from users, shown as they are: what a form would take as markup is escaped, and what no file name holds replaced."""

from __future__ import annotations

import re

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#$~])")


def markdown(text: str) -> str:
    """For Markdown, also in a cell of a table; brackets with numbers, as intervals have, need no care."""
    plain = re.fullmatch(r"[^`*_<>|#$~\\]*", text) and not re.search(r"\]\s*[(\[:]", text)
    return (text if plain else _MARKDOWN.sub(r"\\\1", text)).replace("\n", " ")


def file_name(text: str) -> str:
    """For a file or folder: whatever is not a letter, digit, underscore, dot or dash becomes a dash."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "unnamed"


def latex(text: str) -> str:
    r"""For \text{…} in a formula."""
    return re.sub(r"([_#%&${}])", r"\\\1", text)


def picture(text: str) -> str:
    """For matplotlib: "$" begins no formula, "_" hides no legend entry."""
    shown = text.replace("$", r"\$")
    return f"\u200b{shown}" if shown.startswith("_") else shown
