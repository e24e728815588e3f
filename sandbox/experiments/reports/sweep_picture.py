"""A sweep as a picture: a curve over one number, a heat map over two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sandbox.utils.literal import picture as literal

if TYPE_CHECKING:
    from sandbox.experiments.sweep import Sweep


def draw(found: Sweep, axes: Any, measure: str) -> None:
    """Draws it.  Raises ValueError where more than two numbers vary."""
    if len(found.vary) > 2:
        raise ValueError(f"a picture shows one or two varied numbers, not {len(found.vary)}; use frame")
    (_curve if len(found.vary) == 1 else _map)(found, axes, measure)


def _label(name: str) -> str:
    return {"lr": "learning rate η", "rectifier.sigma": "σ (rectifier.sigma)"}.get(name, name)


def _logarithmic(values: np.ndarray) -> bool:
    return bool(values[0] > 0 and values[-1] / values[0] > 20)


def _in_order(found: Sweep, measure: str) -> tuple[list[np.ndarray], np.ndarray]:
    """The values of each varied number, lowest first, and the grid in that order: a picture's cells lie side by side."""
    values = [np.array(row) for row in found.vary.values()]
    orders = [np.argsort(row, kind="stable") for row in values]
    return [row[order] for row, order in zip(values, orders, strict=True)], found.grid(measure)[np.ix_(*orders)]


def _curve(found: Sweep, axes: Any, measure: str) -> None:
    (name,) = found.vary
    (values,), middle = _in_order(found, measure)
    finite = np.isfinite(middle) & (np.abs(middle) < 1e100)  # beyond, an axis overflows
    axes.plot(values[finite], middle[finite], color="#0072B2", marker="o", markersize=3)
    for value in values[~finite]:
        axes.axvline(value, color="0.8", linewidth=1, zorder=0)
    if _logarithmic(values):
        axes.set_xscale("log")
    shown = middle[finite]
    if len(shown) and shown.min() > 0 and shown.max() / shown.min() > 5:
        axes.set_yscale("log")
    axes.set_xlabel(_label(name))
    axes.set_ylabel(f"{measure.replace('_', ' ')} after {found.steps} steps")
    axes.set_title(literal(f"{found.recipe.name} on {found.task.name}") + (" (grey: diverged)" if not finite.all() else ""))


def _map(found: Sweep, axes: Any, measure: str) -> None:
    from matplotlib.colors import LogNorm, Normalize

    x_name, y_name = found.vary
    (x, y), raw = _in_order(found, measure)
    values = np.ma.masked_invalid(np.where(np.abs(raw) < 1e100, raw, np.nan).T)
    shown = values.compressed()
    # what lies far above everything else would take all colours
    top = float(np.quantile(shown, 0.95)) if len(shown) else 1.0
    low = float(shown.min()) if len(shown) else 0.0
    log = low > 0 and top / low > 5
    norm = (LogNorm if log else Normalize)(vmin=low, vmax=max(top, low * 1.0001 + 1e-300))
    axes.set_facecolor("0.85")
    mesh = axes.pcolormesh(x, y, values, norm=norm, cmap="viridis", shading="nearest", rasterized=True)
    if len(shown) and top > low and min(values.shape) > 1:
        levels = np.geomspace(low, top, 9)[1:-1] if log else np.linspace(low, top, 9)[1:-1]
        axes.contour(x, y, values, levels=levels, colors="white", linewidths=0.6)
    for scale, row in ((axes.set_xscale, x), (axes.set_yscale, y)):
        if _logarithmic(row):
            scale("log")
    axes.set_xlabel(_label(x_name))
    axes.set_ylabel(_label(y_name))
    axes.figure.colorbar(mesh, ax=axes, label=f"{measure.replace('_', ' ')} after {found.steps} steps", extend="max")
    lost = values.mask.any() if np.ma.is_masked(values) else False
    axes.set_title(literal(f"{found.recipe.name} on {found.task.name}") + (" (grey: diverged)" if lost else ""), fontsize=10)
