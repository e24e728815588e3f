"""A recipe as text and as LaTeX: every block contributes the equation that it computes, so what is shown is what runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from sandbox.blocks import Block, Divide, Solve
from sandbox.blocks.number import is_number, show
from sandbox.recipe import analysis, parts
from sandbox.utils import literal

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
    "limit": ("c", "c"),
    "max_norm": ("c", "c"),
    "max_value": ("c", "c"),
    "ceiling": ("Λ", r"\Lambda"),
    "exponent": ("k", "k"),
    "rho": ("ρ", r"\rho"),
    "start": ("B₀", "B_0"),
    "low": ("low", r"\ell"),
    "high": ("high", "h"),
}


def hyperparameters(owner: Any, latex: bool = False) -> list[str]:
    """ "β = 0.9" for every number of a block and of the blocks inside it."""
    texts = []
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        if is_number(field):
            symbol = SYMBOLS.get(field.name, (field.name, rf"\mathrm{{{field.name}}}".replace("_", r"\_")))[latex]
            texts.append(f"{symbol} = {_latex_number(value) if latex else show(value)}")
        elif isinstance(value, Block):
            texts += hyperparameters(value, latex)
    return texts


def _latex_number(value: Any) -> str:
    text = show(value)
    if isinstance(value, float):
        mantissa, e, exponent = text.partition("e")
        text = (f"{mantissa}\\times " if mantissa != "1" else "") + f"10^{{{int(exponent)}}}" if e else text
        return text.replace("inf", r"\infty")
    return text if isinstance(value, Tensor) and value.ndim == 0 else rf"\text{{{literal.latex(text)}}}"


def state_line(recipe: Any) -> str:
    """What a recipe keeps, for its head line."""
    return f"{analysis.state_text(recipe)} state elements per parameter" + (
        " of an (m, n) matrix, n over all further axes" if recipe.analysis.matrix else ""
    )


def text(recipe: Any) -> str:
    """The algorithm of a `Recipe`, one line per slot, with its hyperparameters at the right."""
    stored = (
        "d stored"
        if recipe.analysis.stores_direction
        else "d recomputed from it"
        if recipe.analysis.uses_direction
        else "d not needed"
    )
    head = f"{recipe.name}: {state_line(recipe)} ({stored}), scope {recipe.scope}"
    rows = [("", "g = ∇f(θ)", "t = 1, 2, …")]
    for slot, block, equation in _equations(recipe, latex=False):
        rows.append((slot, equation, ", ".join(hyperparameters(block))))
    slot, equation, values = rows[-1]
    rows[-1] = slot, equation, ", ".join(filter(None, [f"η = {show(recipe.lr)}", values]))
    width = max(_width(equation) for _, equation, _ in rows)
    lines = [
        f"  {slot:<11} {equation}{' ' * (width - _width(equation))}   {values}".rstrip() for slot, equation, values in rows
    ]
    return "\n".join([head, *lines, *(f"  {line}" for line in _inner(text, recipe).splitlines())])


def _inner(write: Any, recipe: Any) -> str:
    """Who trains what else: the recipe of vectors and those of roles, by `write`."""
    texts = [] if recipe.vectors is None else [f"tensors with fewer than two axes: {write(recipe.vectors)}"]
    given = recipe.roles.given()
    for who in dict.fromkeys(given.values()):
        some = ", ".join(role for role, value in given.items() if value == who)
        texts.append(f"role {some}: {f'as {who}' if isinstance(who, str) else write(who)}")
    return "\n".join(texts)


def _equations(recipe: Any, *, latex: bool) -> Iterator[tuple[str, Block, str]]:
    """(slot, block, equation) of every block but the plain ones; the decay's equation names the solver's output."""
    divided = Divide.symbol[latex]
    output = Solve.symbol[latex] if recipe.adjust else recipe.solve.symbol[latex]
    for path, block in recipe.blocks():
        slot = path.split(".")[0]
        if recipe.adjust and block == Divide():
            yield slot, block, f"{output} = {divided}"
        elif parts.PLAIN.get(slot) != block:
            equation = block.equation(slot, latex=latex)
            yield slot, block, equation.replace(divided, output) if slot == "decay" else equation


def _width(equation: str) -> int:
    return len(equation.replace("\u0304", ""))  # a combining bar takes no room


def markdown(recipe: Any) -> str:
    """The algorithm as LaTeX, for notebooks."""
    rows = [r"g_t &= \nabla f(\theta_{t-1})"]
    for slot, block, equation in _equations(recipe, latex=True):
        equation = equation or rf"\text{{{literal.latex(block.equation(slot))}}}"
        values = ",\\; ".join(hyperparameters(block, latex=True))
        rows.append(f"&{equation}" + (rf" &&\quad {values}" if values else ""))
    rows.append(rf"&\eta = {_latex_number(recipe.lr)}")
    body = " \\\\\n".join(rows)
    head = f"**{literal.markdown(recipe.name)}** ({state_line(recipe)}, scope {recipe.scope})"
    return f"{head}\n\n$$\n\\begin{{aligned}}\n{body}\n\\end{{aligned}}\n$$\n\n{_inner(markdown, recipe)}".rstrip()
