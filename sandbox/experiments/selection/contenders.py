"""What the choice of a rate adds to the uncertainty of a comparison.

With other tuning seeds another trial might have been chosen.  The tuning seeds are resampled with replacement; the trials that
some resample prefers are the contenders, and a few final runs of each show how far its results are from the chosen one's.  The
variance of the difference of two variants over the resamples, times m/(m-1) for m seeds, is added to that of its mean, with
m - 1 degrees of freedom.

Type I errors at level .05 of 200 comparisons of a recipe with itself (`apollo-sandbox calibrate RECIPE --tuned`), each side
tuned with three seeds of its own, of loss and metric, in brackets without the choice of rates: adamw on ridge-diabetes, 10
updates, .045 and .030 (.215, .115); sgd on softmax-digits, 30, .065 and .075 (.375, .345); adamw on digits-mlp, 40, .040 and
.040 (.340, .135); apollo on ridge-diabetes, 30, .125 and .035 (.585, .185): there the final losses at one rate hardly differ,
and three seeds that agree on a rate by chance weigh most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from sandbox.experiments.selection.axes import Trial
from sandbox.experiments.selection.statistics import Choice

SEEDS = 4  # final runs of a contender
RESAMPLES = 1000  # where there are more than that, so many are drawn


def resamples(seeds: int) -> np.ndarray:
    """Returns (resamples, seeds): the places of tuning seeds drawn with replacement; all of them where they are few."""
    if seeds**seeds <= RESAMPLES:
        return np.array(list(itertools.product(range(seeds), repeat=seeds)))
    return np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))


def picks(trials: Sequence[Trial]) -> np.ndarray:
    """Returns the place of the trial that each resample of the tuning seeds prefers; of equal ones the lowest rate's."""
    order = sorted(range(len(trials)), key=lambda i: trials[i].numbers.get("lr", 0.0))
    losses = np.array([trials[i].losses for i in order])  # (trials, seeds)
    return np.array(order)[losses[:, resamples(losses.shape[1])].mean(axis=2).argmin(axis=0)]


def contending(trials: Sequence[Trial], chosen: Mapping[str, object]) -> list[Trial]:
    """Returns the trials other than the chosen one that some resample prefers, in the order in which they were made.

    A trial that diverged with some tuning seed is none, though other seeds might have let it pass.
    """
    if not trials or len(trials[0].losses) < 2 or any(len(t.losses) != len(trials[0].losses) for t in trials):
        return []
    preferred = [trials[i] for i in sorted(set(picks(trials).tolist()))]
    return [t for t in preferred if not t.numbers.items() <= chosen.items() and math.isfinite(t.loss)]


def variance(shifts: Sequence[tuple[Sequence[Trial], Mapping[int, float]]]) -> Choice:
    """Returns the variance that the choice of trials gives to a difference of two variants.

    shifts: of each variant its trials, and the place of a contender among them -> mean result minus that of the chosen trial;
    the trials' losses are of the same tuning seeds.  0 where nothing contends, infinity where a contender's result is infinite.
    """
    moved = [np.array([by_place.get(i, 0.0) for i in picks(trials)]) for trials, by_place in shifts if by_place]
    seeds = max((len(trials[0].losses) for trials, by_place in shifts if by_place), default=0)
    if not moved:
        return Choice()
    if not all(np.isfinite(each).all() for each in moved):
        return Choice(math.inf, seeds - 1)
    moved = moved if len(moved) == 2 else [moved[0], np.zeros(1)]
    return Choice(float(np.var(moved[0] - moved[1])) * seeds / (seeds - 1), seeds - 1)
