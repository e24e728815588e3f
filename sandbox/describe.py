"""A recipe as text and as LaTeX: every block contributes the equation that it computes, so what is shown is what runs."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sandbox.blocks import Block, NoAveraging
from sandbox.blocks.base import is_number, show

if TYPE_CHECKING:
    from sandbox.recipe import Recipe

# field name -> symbol in text, symbol in LaTeX
SYMBOLS = {
    "lr": ("η", r"\eta"),
    "beta": ("β", r"\beta"),
    "eps": ("ε", r"\epsilon"),
    "sigma": ("σ", r"\sigma"),
    "weight_decay": ("γ", r"\gamma"),
    "damping": ("δ", r"\delta"),
    "momentum": ("μ", r"\mu"),
    "dampening": ("τ", r"\tau"),
    "max_norm": ("c", "c"),
    "max_value": ("c", "c"),
    "ceiling": ("Λ", r"\Lambda"),
    "exponent": ("k", "k"),
    "rho": ("ρ", r"\rho"),
    "start": ("B₀", "B_0"),
    "low": ("low", r"\ell"),
    "high": ("high", "h"),
}


def numbers(owner: Any, latex: bool = False) -> list[str]:
    """ "β = 0.9" for every number of a block and of the blocks inside it."""
    found = []
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if is_number(field):
            symbol = SYMBOLS.get(field.name, (field.name, rf"\mathrm{{{field.name}}}".replace("_", r"\_")))[latex]
            found.append(f"{symbol} = {_latex_number(value) if latex else show(value)}")
        elif isinstance(value, Block):
            found += numbers(value, latex)
    return found


def _latex_number(value: Any) -> str:
    text = show(value)
    if isinstance(value, float):
        mantissa, e, exponent = text.partition("e")
        text = (f"{mantissa}\\times " if mantissa != "1" else "") + f"10^{{{int(exponent)}}}" if e else text
        return text.replace("inf", r"\infty")
    return text if isinstance(value, Tensor) and value.ndim == 0 else rf"\text{{{_escape(text)}}}"


def _escape(text: str) -> str:
    return re.sub(r"([_#%&$])", r"\\\1", text)


def lines(recipe: Recipe) -> list[tuple[str, str, Block]]:
    """(slot, equation, block) of what does something, in the order of a step."""
    rows = []
    for path, block in recipe.blocks():
        slot = path.split(".")[0]
        if not isinstance(block, NoAveraging):
            rows.append((slot, _in_slot(slot, block, block.text or _summary(block)), block))
    return rows


def _summary(block: Block) -> str:
    """The first line of a block's docstring, for one that gives no equation."""
    return ((block.__doc__ or "").strip() or type(block).__name__).splitlines()[0]


def _in_slot(slot: str, block: Block, equation: str) -> str:
    """A moment's equation speaks of m and g; where it averages the curvature these are B̄ and B."""
    if slot != "averaging" or "moment" not in block.slots:
        return equation
    return equation.replace("m_", r"\bar B_").replace("g_", "B_").replace(" g", " B").replace("m ", "B̄ ")


def text(recipe: Recipe) -> str:
    """The algorithm, a line a slot, with its numbers at the right."""
    stored = "d stored" if recipe.stores_direction else "d computed again from it" if recipe.uses_direction else "d not needed"
    head = f"{recipe.name}: {recipe.state_words} words of state a parameter ({stored}), scope {recipe.scope}"
    rows = [("", "g = ∇f(θ)", "t = 1, 2, …")]
    rows += [(slot, equation, ", ".join(numbers(block))) for slot, equation, block in lines(recipe)]
    rows[-1] = (rows[-1][0], rows[-1][1], ", ".join(filter(None, [f"η = {show(recipe.lr)}", rows[-1][2]])))
    width = max(len(_bare(equation)) for _, equation, _ in rows)
    body = []
    for slot, equation, values in rows:
        padding = " " * (width - len(_bare(equation)))
        line = _plain_average(f"  {slot:<11} {equation}{padding}   {values}", recipe)
        body.append(line.rstrip())
    return "\n".join([head, *body])


def _bare(equation: str) -> str:
    return equation.replace("\u0304", "")  # a combining bar takes no room


def _plain_average(line: str, recipe: Recipe) -> str:
    return line.replace("B̄ ", "B  ").replace("B̄", "B") if isinstance(recipe.averaging, NoAveraging) else line


def markdown(recipe: Recipe) -> str:
    """The algorithm as LaTeX, for notebooks."""
    rows = [r"g_t &= \nabla f(\theta_{t-1})"]
    for slot, equation, block in lines(recipe):
        shown = _in_slot(slot, block, block.latex or rf"\text{{{_escape(equation)}}}")
        if isinstance(recipe.averaging, NoAveraging):
            shown = shown.replace(r"\bar B", "B")
        values = ",\\; ".join(numbers(block, latex=True))
        rows.append(f"&{shown}" + (rf" &&\quad {values}" if values else ""))
    rows.append(rf"&\eta = {_latex_number(recipe.lr)}")
    body = " \\\\\n".join(rows)
    head = f"**{recipe.name}** ({recipe.state_words} words of state a parameter, scope {recipe.scope})"
    return f"{head}\n\n$$\n\\begin{{aligned}}\n{body}\n\\end{{aligned}}\n$$"
