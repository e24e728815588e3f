"""Paired statistics: each seed is one pair, and what is tested is the difference to the first variant."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr, stdtrit  # scipy.stats takes two thirds of a second to import

TIE = 1e-6  # of the largest value: above the rounding of float32, below one image in a million


def enough_seeds(comparisons: int) -> int:
    """Returns the fewest pairs with which a sign-flip test, corrected by Holm over so many comparisons, can reach p < 0.05.

    The smallest two-sided p of n pairs is 2/2ⁿ, and Holm multiplies the smallest of k by k: 6 pairs for one comparison, 8 for
    four.
    """
    # k 2/2ⁿ < 0.05
    return math.floor(math.log2(max(comparisons, 1) * 2 / 0.05)) + 1


@dataclasses.dataclass(frozen=True)
class Difference:
    """A paired difference: mean, 95 % interval (Student t) and p-value (None where infinities leave no mean)."""

    mean: float | None
    low: float | None
    high: float | None
    p: float
    pairs: int
    spread: float = 0.0  # standard deviation of the differences; with a choice of rates √n times the error of their mean
    freedom: float | None = None  # degrees of freedom of that error, where they are not pairs - 1


@dataclasses.dataclass(frozen=True)
class Choice:
    """What the choice of rates adds to the variance of a mean difference, estimated with so many degrees of freedom."""

    variance: float = 0.0
    freedom: int = 1


def paired(values: Sequence[float], base: Sequence[float], choice: Choice = Choice()) -> Difference:
    """Tests `values` - `base`, seed by seed.

    choice: of rates (`contenders.variance`).  Where it adds a variance, p is at least that of a t-test with it, and infinities
    decide nothing.

    The interval is Student's t over pairs, the p-value a two-sided sign-flip test of the mean (exact up to 13 pairs), in which
    sums that differ by less than `TIE` of the largest value are equal.  Where a pair holds an infinity (one of the two
    diverged) there is no mean, and the test is of signed ranks.
    Raises ValueError for unequal lengths or NaN.
    """
    a, b = np.asarray(values, dtype=float), np.asarray(base, dtype=float)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"paired values must be two lists of the same length, got shapes {a.shape} and {b.shape}")
    if np.isnan(a).any() or np.isnan(b).any():
        raise ValueError("paired values must not hold NaN; a diverged run counts as infinite")
    with np.errstate(invalid="ignore"):
        d = np.where(a == b, 0.0, a - b)
    values_and_base = np.concatenate([a, b])
    tie = TIE * float(np.abs(values_and_base[np.isfinite(values_and_base)]).max(initial=0.0))
    if not np.isfinite(d).all():
        return Difference(None, None, None, 1.0 if choice.variance else sign_flip(_signed_ranks(d, tie)), len(d))
    low, high = interval(d, choice=choice)
    p, spread, own = sign_flip(d, tie), float(d.std(ddof=1)) if len(d) > 1 else np.inf, None
    if choice.variance and len(d) > 1:
        error, own = _error(d, choice)
        p = max(p, 2 * float(stdtr(own, -abs(float(d.mean())) / error)))
        spread = error * math.sqrt(len(d))
    return Difference(float(d.mean()), low, high, p, len(d), spread, own)


def _error(d: np.ndarray, choice: Choice) -> tuple[float, float]:
    """Returns the standard error of the mean of n differences, and its degrees of freedom (Satterthwaite 1946).

    e² = s²/n + V,  ν = e⁴ / ((s²/n)²/(n-1) + V²/ν_V), at most n-1
    """
    n, v = len(d), float(d.var(ddof=1)) / len(d)
    if not choice.variance or math.isinf(choice.variance):
        return math.sqrt(v + choice.variance), n - 1
    freedom = (v + choice.variance) ** 2 / (v**2 / (n - 1) + choice.variance**2 / choice.freedom)
    return math.sqrt(v + choice.variance), min(freedom, n - 1)


def _signed_ranks(d: np.ndarray, tie: float) -> np.ndarray:
    """Returns the ranks of |d| with the signs of d; sizes within `tie` of their neighbours share the mean of their ranks."""
    from scipy.stats import rankdata

    order = np.argsort(np.abs(d), kind="stable")
    with np.errstate(invalid="ignore"):
        gaps = np.diff(np.abs(d)[order])  # NaN between two infinities
    groups = np.empty(len(d))
    groups[order] = np.concatenate([[0], np.cumsum(gaps > tie)])
    return np.where(np.abs(d) > tie, np.sign(d), 0.0) * rankdata(groups)


def interval(d: np.ndarray, level: float = 0.95, choice: Choice = Choice()) -> tuple[float, float]:
    """Returns the Student t interval of the mean; (-inf, inf) for one value, which says nothing about the spread.

    choice: of rates, whose variance is added to that of the mean.

    How often 95 % intervals hold the true mean, in 20,000 samples (bootstraps: 2,000) of n values:

        n                        2     4     6    10    20
        normal       Student  .950  .952  .952  .952  .949
                  percentile  .514  .785  .855  .905  .923
                         BCa     -  .786  .856  .903  .920
        exponential  Student  .910  .881  .890  .897  .917
                  percentile  .472  .751  .800  .862  .904
                         BCa     -  .762  .815  .871  .910
    """
    if len(d) < 2:
        return -np.inf, np.inf
    error, freedom = _error(d, choice)
    half = float(stdtrit(freedom, (1 + level) / 2) * error)
    return float(d.mean()) - half, float(d.mean()) + half


def sign_flip(d: np.ndarray, tie: float = 0.0) -> float:
    """Returns the two-sided p-value that differences symmetric about 0 have a mean at least as far from 0.

    Exact up to 13 pairs, else from 9,999 draws of signs (SciPy's `permutation_test` does the same; it has no `tie`).
    tie: what differences of two equal numbers may be; means that are nearer than this are equal, as those of accuracies are,
    whose float32 rounding would otherwise break ties and make p too small.
    """
    n = len(d)
    if n <= 13:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.concatenate([np.ones((1, n)), np.random.default_rng(0).choice((-1.0, 1.0), (9_999, n))])
    sums = np.abs(signs @ d)
    rounding = 8 * n * np.finfo(float).eps * np.abs(d).sum()
    return float(np.mean(sums >= sums[0] - max(n * tie, rounding)))


def holm(p: Sequence[float]) -> list[float]:
    """Returns p-values after Holm's step-down correction."""
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = running
    return adjusted.tolist()


def smallest_detectable(spread: float, n: int, power: float = 0.8, level: float = 0.05, freedom: float | None = None) -> float:
    """Returns the smallest true mean difference that n pairs find with the given power, in a two-sided t-test at `level`.

    spread: standard deviation σ of the paired differences, taken as normal.  With T = (Z + δ√n/σ)/V, Z standard normal and
    ν V² chi-squared with ν = `freedom` degrees of freedom, default n-1, solves P(|T| > t_{1-level/2}) = power for δ (Cohen
    1988).  Infinite for n < 2, 0 without spread.
    """
    if n < 2 or math.isinf(spread):
        return np.inf
    from scipy import optimize, stats

    # V at the midpoints of 10,000 equal probabilities
    freedom = n - 1 if freedom is None else freedom
    V = np.sqrt(stats.chi2.ppf((np.arange(10_000) + 0.5) / 10_000, freedom) / freedom)
    far = stats.t.ppf(1 - level / 2, freedom) * V

    def lacking(shift: float) -> float:
        return float(np.mean(stats.norm.sf(far - shift) + stats.norm.cdf(-far - shift))) - power

    return float(optimize.brentq(lacking, 0.0, 1e4)) * spread / np.sqrt(n)
