"""The charts of a comparison's page, as Vega-Lite specifications.

A specification may hold a choice of its reader in the place of a value: "$y" is the value of what is chosen for "y", "$y.key"
an entry of it, and "$y label" its label.  The page fills them in, and so does `fill` here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sandbox.experiments.reports.figures import COLOURS

Spec = dict[str, Any]
Choices = dict[str, dict[str, Any]]  # name -> label -> value

SCALES: dict[str, Any] = {
    "log": {"axis": {"type": "log"}, "shown": {"field": "$y", "gt": 0}},
    "linear": {"axis": {"type": "linear", "zero": False}, "shown": {"field": "$y", "valid": True}},
}
SEEDS = {
    "median and range": {"middle": 1.0, "range": 0.15, "each": 0.0},
    "each seed": {"middle": 0.0, "range": 0.0, "each": 0.7},
}


@dataclasses.dataclass(frozen=True)
class Chart:
    """A heading, a specification and its choices, of which the first is taken at first.  data: the table that it draws."""

    heading: str
    data: str
    spec: Spec
    choices: Choices

    def filled(self) -> Iterator[Spec]:
        """Yields the specification with each combination of choices."""
        for labels in itertools.product(*self.choices.values()):
            yield fill(self.spec, self.choices, dict(zip(self.choices, labels, strict=True)))


def fill(value: Any, choices: Choices, labels: Mapping[str, str]) -> Any:
    """Returns a specification with the chosen labels' values in the place of the choices."""
    if isinstance(value, dict):
        return {key: fill(each, choices, labels) for key, each in value.items()}
    if isinstance(value, list):
        return [fill(each, choices, labels) for each in value]
    if not (isinstance(value, str) and value.startswith("$") and value != "$schema"):
        return value
    if value.endswith(" label"):
        return labels[value[1:-6]]
    name, _, key = value[1:].partition(".")
    chosen = choices[name][labels[name]]
    return fill(chosen[key] if key else chosen, choices, labels)


def curves(names: Sequence[str], axes: Mapping[str, str], quantities: Mapping[str, str]) -> Chart:
    """Returns quantities over updates, gradient evaluations or seconds.  axes, quantities: label -> column of "rows"."""
    shown = {"filter": "$scale.shown"}
    by_step = {
        "aggregate": [
            *({"op": op, "field": "$y", "as": name} for op, name in (("median", "middle"), ("min", "low"), ("max", "high"))),
            {"op": "mean", "field": "$x", "as": "x"},
        ],
        "groupby": ["variant", "step"],
    }
    x, y, colour = _axis("x", "$x label"), _axis("$y", "$y label", "$scale.axis"), _colour(names)
    middle = {
        "transform": [shown, by_step],
        "params": [_legend(names)],
        "mark": {"type": "line", "point": {"size": 20}},
        "encoding": {
            "x": x, "y": y | {"field": "middle"}, "color": colour, "opacity": _visible("$seeds.middle"),
            "tooltip": [{"field": field} for field in ("variant", "step", "low", "middle", "high")],
        },
    }  # fmt: skip
    band = {
        "transform": [shown, by_step],
        "mark": "area",
        "encoding": {
            "x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour, "opacity": _visible("$seeds.range"),
        },
    }  # fmt: skip
    each = {
        "transform": [shown],
        "mark": {"type": "line", "strokeWidth": 1},
        "encoding": {
            "x": x | {"field": "$x"}, "y": y, "color": colour, "detail": {"field": "seed"}, "opacity": _visible("$seeds.each"),
        },
    }  # fmt: skip
    choices: Choices = {"y": dict(quantities), "x": dict(axes), "scale": SCALES, "seeds": SEEDS}
    return Chart("Curves", "rows", _chart(layer=[middle, band, each]), choices)


def rates(names: Sequence[str], quantities: Mapping[str, str]) -> Chart:
    """Returns what tuning saw: quantities of "tuning" over the rate; the chosen rates are filled."""
    x = _axis("lr", "learning rate", {"type": "log"})
    y, colour = _axis("$y", "$y label", "$scale.axis") | {"aggregate": "mean"}, _colour(names)
    encoding = {"x": x, "y": y, "color": colour, "opacity": _visible(1.0)}
    shown = {"filter": "$scale.shown"}
    layers = [
        {"transform": [shown], "params": [_legend(names)], "mark": "line", "encoding": encoding},
        {
            "transform": [shown],
            "mark": {"type": "point", "size": 60},
            "encoding": encoding | {"tooltip": [{"field": "variant"}, {"field": "lr"}, {"field": "$y", "aggregate": "mean"}]},
        },
        {
            "transform": [shown, {"filter": {"field": "chosen", "equal": True}}],
            "mark": {"type": "point", "size": 110, "filled": True},
            "encoding": encoding,
        },
        {
            "transform": [shown],
            "mark": {"type": "tick", "thickness": 1, "size": 8},
            "encoding": encoding | {"y": _axis("$y", "$y label", "$scale.axis"), "opacity": _visible(0.5)},
        },
    ]
    return Chart("Losses over the rate", "tuning", _chart(layer=layers), {"y": dict(quantities), "scale": SCALES})


def ends(names: Sequence[str], quantities: Mapping[str, str]) -> Chart:
    """Returns the distribution of the values at the end, one point per seed with the quartiles: quantities of "ends"."""
    x, y = _axis("$y", "$y label", "$scale.axis"), {"field": "variant", "type": "nominal", "title": None, "sort": list(names)}
    colour, shown = _colour(names) | {"legend": None}, {"filter": "$scale.shown"}
    layers = [
        {
            "transform": [shown],
            "mark": {"type": "point", "filled": True, "opacity": 0.6, "size": 45},
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": [{"field": f} for f in ("variant", "seed", "$y")]},
        },
        {
            "transform": [shown],
            "mark": {"type": "errorbar", "extent": "iqr", "ticks": True},
            "encoding": {"x": x, "y": y, "color": colour},
        },
    ]
    spec = _chart(layer=layers, height={"step": 34})
    return Chart("Values at the end, a point per seed, with quartiles", "ends", spec, {"y": dict(quantities), "scale": SCALES})


def differences(names: Sequence[str], quantities: Mapping[str, str]) -> Chart:
    """Returns the mean paired differences to the first variant with their 95 % intervals; quantities: label -> measure."""
    first = names[0]
    y = {"field": "variant", "type": "nominal", "title": f"minus {first}", "sort": list(names)}
    x, colour = _axis("low", "$y label"), _colour(names) | {"legend": None}
    mine = {"filter": {"field": "measure", "equal": "$y"}}
    layers = [
        {
            "transform": [mine],
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {"x": x, "x2": {"field": "high"}, "y": y, "color": colour},
        },
        {
            "transform": [mine],
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {
                "x": x | {"field": "mean"}, "y": y, "color": colour,
                "tooltip": [{"field": field} for field in ("variant", "low", "mean", "high", "p")],
            },
        },
        {"mark": {"type": "rule", "strokeDash": [4, 4]}, "encoding": {"x": {"datum": 0}}},
    ]  # fmt: skip
    spec = _chart(layer=layers, height={"step": 34})
    return Chart(f"Differences to {first}, 95 % intervals", "differences", spec, {"y": dict(quantities)})


def profiles(names: Sequence[str], unit: str) -> Chart:
    """Returns performance profiles with their bands: rho, low and high of "profiles" over tau."""
    x, y = _axis("tau", f"τ: at most so many times the {unit} of the fastest"), _axis("rho", "share of comparisons")
    y["scale"], colour = {"domain": [0, 1]}, _colour(names)
    layers = [
        {
            "params": [_legend(names)],
            "mark": {"type": "line", "interpolate": "step-after"},
            "encoding": {
                "x": x, "y": y, "color": colour, "opacity": _visible(1.0),
                "tooltip": [{"field": field} for field in ("variant", "tau", "low", "rho", "high")],
            },
        },
        {
            "mark": {"type": "area", "interpolate": "step-after"},
            "encoding": {
                "x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour, "opacity": _visible(0.12),
            },
        },
    ]  # fmt: skip
    return Chart("Performance profiles, with 95 % bands", "profiles", _chart(layer=layers), {})


def lengths(names: Sequence[str], tasks: Sequence[str]) -> Chart:
    """Returns the mean validation loss at the end over the length of runs: loss over length of "lengths", by task."""
    x, y = _axis("length", "updates", {"type": "log"}), _axis("loss", "validation loss at the end", "$scale.axis")
    shown = [{"filter": {"field": "task", "equal": "$task"}}]
    encoding = {"x": x, "y": y, "color": _colour(names), "opacity": _visible(1.0)}
    layers = [
        {"transform": shown, "params": [_legend(names)], "mark": "line", "encoding": encoding},
        {
            "transform": shown,
            "mark": {"type": "point", "filled": True, "size": 60},
            "encoding": encoding | {"tooltip": [{"field": field} for field in ("variant", "length", "loss", "speedup")]},
        },
    ]
    scales = {name: {"axis": scale["axis"]} for name, scale in SCALES.items()}
    return Chart("Loss against length", "lengths", _chart(layer=layers), {"task": {t: t for t in tasks}, "scale": scales})


def _chart(**more: Any) -> Spec:
    config = {"legend": {"labelLimit": 400}, "axis": {"labelFontSize": 12, "titleFontSize": 13, "labelLimit": 300}}
    schema = "https://vega.github.io/schema/vega-lite/v6.json"
    return {"$schema": schema, "width": 720, "height": 380, "data": {"name": "table"}, "config": config} | more


def _axis(field: str, title: str, scale: Any = None) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "scale": scale or {"zero": False}}


def _colour(names: Sequence[str]) -> Spec:
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
    scale, legend = {"domain": list(names), "range": colours}, {"symbolOpacity": 1}
    return {"field": "variant", "type": "nominal", "scale": scale, "title": None, "legend": legend}


def _legend(names: Sequence[str]) -> Spec:
    """Returns the parameter by which a click in the legend hides a variant, or shows it again."""
    select = {"type": "point", "fields": ["variant"], "toggle": "true"}
    return {"name": "shown", "select": select, "bind": "legend", "value": [{"variant": name} for name in names]}


def _visible(opacity: Any) -> Spec:
    return {"condition": {"param": "shown", "value": opacity}, "value": 0}
