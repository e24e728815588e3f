"""Is there a recipe of these blocks that beats both Apollo and AdamW?

    python -m sandbox.studies.beyond --out results/beyond

1. On digits, TPE chooses among Apollo's ablations with all their numbers; Apollo and AdamW have as many trials for their rate.
2. What was found keeps its blocks and numbers but the rate.  On Fashion-MNIST and on speeches all three have equal grids of
   rates and fresh seeds.

beyond.parquet holds the final runs of the three tasks, beyond.md the recipe and the paired differences.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from sandbox import tasks
from sandbox.blocks import EMA, AbsoluteFloor, BeliefFloor, NoAveraging, ScaleInvariantFloor, SoftAbsolute, WeakSecant
from sandbox.experiments.compare import compare
from sandbox.experiments.runs.methods import Ours, method
from sandbox.experiments.selection import statistics
from sandbox.forms import toml
from sandbox.recipe import Recipe
from sandbox.studies.f06_language import SMOKE
from sandbox.studies.report import Table, markdown
from sandbox.studies.verdicts.deciders import direction, p_of

PEERS = ("apollo", "adamw")
SPACE: dict[str, Any] = {
    "lr": (0.03, 30.0, "log", "relative"),
    "moment": [EMA(beta=b) for b in (0.0, 0.5, 0.8, 0.9, 0.95)],
    "curvature": [WeakSecant(eps=e, stepsize_correction=c) for e in (1e-6, 1e-4, 1e-2) for c in (True, False)],
    "averaging": [NoAveraging(), EMA(beta=0.9), EMA(beta=0.99)],
    "rectifier": [
        *(kind(sigma=s) for kind in (AbsoluteFloor, SoftAbsolute) for s in (1e-4, 1e-2)),
        *(ScaleInvariantFloor(sigma=s) for s in (0.01, 0.1, 1.0)),
        BeliefFloor(eps=1e-4),
    ],
    "scope": ["global", "parameter", "channel", "coordinate"],
}
RATE = {"lr": SPACE["lr"]}
HELD_OUT = (("lenet-fashion", {"images": 4000}, 186), ("lstm-speeches", SMOKE, 300))
NAME = "found"


def search(folder: Path, trials: int, seeds: int) -> tuple[Recipe, pl.DataFrame]:
    """The recipe that TPE finds on digits, and the final runs of all three there."""
    rows = []
    found = Ours(method("apollo").recipe.replace(name=NAME))  # type: ignore[union-attr]
    for name, space, recipes in (("blocks", SPACE, [found]), ("rates", RATE, list(PEERS))):
        result = compare(
            [m.recipe if isinstance(m, Ours) else m for m in recipes], "digits-mlp", search=space, tuner="tpe", trials=trials,
            tuning_seeds=1, seeds=seeds, steps=200, evaluations=2, out=folder / name,
        )  # fmt: skip
        rows.append(result.runs)
        if name == "blocks":
            found = found.replaced(result.chosen[NAME].numbers)
    return found.recipe, pl.concat(rows, how="diagonal")


def held_out(recipe: Recipe, folder: Path, seeds: int, rates: int) -> Iterator[pl.DataFrame]:
    """The final runs on the other tasks, with fresh seeds, all at the best of equal grids of rates."""
    for name, options, steps in HELD_OUT:
        yield compare(
            [recipe, *PEERS], tasks.get(name, **options), rates=rates, tuning_seeds=1, seeds=seeds, steps=steps, evaluations=2,
            out=folder / name,
        ).runs  # fmt: skip


def differences(rows: pl.DataFrame) -> tuple[Table, bool]:
    """What was found minus each of the others, by paired test losses at the end; whether it is better in all of them."""
    body, better = [], True
    last = rows.filter((pl.col("role") == "final") & (pl.col("step") == pl.col("steps"))).sort("seed")
    pairs = [(task, peer) for task in last["task"].unique(maintain_order=True) for peer in PEERS]
    found = {}
    for task, peer in pairs:
        ends = [last.filter((pl.col("task") == task) & (pl.col("variant") == v))["test_loss"].to_list() for v in (NAME, peer)]
        found[task, peer] = statistics.paired(*ends), direction(statistics.paired(*ends), *ends)
    for ((task, peer), (d, sign)), p in zip(found.items(), statistics.holm([p_of(d) for d, _ in found.values()]), strict=True):
        shown = "runs diverged" if d.mean is None else f"{d.mean:+.4f} [{d.low:+.4f}, {d.high:+.4f}]"
        body.append([task, peer, shown, f"{p:.3f}", ("no difference seen", peer, NAME)[sign]])
        better = better and sign < 0
    return ("test loss of what was found, minus", ["task", "of", "mean [95 %]", "p (Holm)", "better"], body), better


def text(recipe: Recipe, rows: pl.DataFrame) -> str:
    """The answer as Markdown."""
    table, better = differences(rows)
    answer = "beats" if better else "does not beat"
    said = f"The recipe that was found {answer} both {' and '.join(PEERS)} beyond its intervals on all tasks."
    return f"# Beyond the paper\n\n{said}\n\n{markdown([table])}\n```toml\n{toml.dumps(recipe)}```\n"


def main() -> None:
    """Searches, checks, and keeps what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/beyond"))
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--rates", type=int, default=3)
    given = parser.parse_args()
    recipe, first = search(given.out, given.trials, given.seeds)
    rows = pl.concat([first, *held_out(recipe, given.out, given.seeds, given.rates)], how="diagonal")
    rows.write_parquet(given.out / "beyond.parquet")
    (given.out / "beyond.md").write_text(text(recipe, rows))


if __name__ == "__main__":
    main()
