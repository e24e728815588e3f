"""Draws the house: packages as rooms, imports as arrows, as they stand in the source."""

from __future__ import annotations

import ast
from pathlib import Path

OURS = ("sandbox", "variants", "theory_checks")


def room(module: str) -> str:
    """The package that a module belongs to: one of sandbox's, or variants, or theory_checks."""
    first, *rest = module.split(".")
    return rest[0] if first == "sandbox" and rest else first


def arrows(root: Path) -> dict[str, set[str]]:
    """Room -> the rooms that it imports from, also inside functions and for type checkers."""
    found: dict[str, set[str]] = {}
    for path in (path for package in OURS for path in (root / package).rglob("*.py")):
        source = room(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
        if source in ("sandbox", "__main__"):
            continue
        found.setdefault(source, set())
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                if name.split(".")[0] in OURS and room(name) not in (source, "sandbox"):
                    found[source].add(room(name))
    return {source: {t for t in targets if t in found} for source, targets in found.items()}


def levels(graph: dict[str, set[str]]) -> dict[str, int]:
    """Room -> its height: 0 for a room that imports none, else one above the highest that it imports."""
    heights: dict[str, int] = {}
    while len(heights) < len(graph):
        ready = [r for r in graph if r not in heights and graph[r] <= heights.keys()]
        if not ready:
            raise ValueError(f"rooms import each other in a circle: {sorted(graph.keys() - heights.keys())}")
        heights |= {r: 1 + max((heights[t] for t in graph[r]), default=-1) for r in ready}
    return heights


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that no path of other arrows replaces."""

    def reach(source: str) -> set[str]:
        return graph[source].union(*map(reach, graph[source]))

    return {r: {t for t in targets if not any(t in reach(o) for o in targets - {t})} for r, targets in graph.items()}


def draw(root: Path, file: Path) -> None:
    """Writes the picture, an SVG; arrows that follow from others are left out."""
    import matplotlib.pyplot as plt

    graph = arrows(root)
    heights = levels(graph)
    places = {}
    for height in range(max(heights.values()) + 1):
        row = sorted(r for r in graph if heights[r] == height)
        places |= {r: ((i + 1) / (len(row) + 1) + 0.035 * (-1) ** height, height) for i, r in enumerate(row)}
    figure, axes = plt.subplots(figsize=(9, 0.9 * (max(heights.values()) + 1)), layout="constrained")
    axes.set(xlim=(0, 1), ylim=(-0.5, max(heights.values()) + 0.5))
    axes.axis("off")
    style = {"arrowstyle": "-|>", "color": "0.45", "shrinkA": 12, "shrinkB": 12}
    for source, targets in reduced(graph).items():
        for target in sorted(targets):
            axes.annotate("", places[target], places[source], arrowprops=style)
    for name, (x, y) in places.items():
        box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "tab:blue"}
        axes.text(x, y, name, ha="center", va="center", fontsize=10, family="monospace", bbox=box)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
