"""The statistics of a comparison, against enumeration and simulation."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.experiments.selection.statistics import enough_seeds, holm, interval, paired, sign_flip


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-10, 10).filter(lambda v: abs(v) > 1e-3), min_size=2, max_size=8))
def test_sign_flip_is_the_exact_enumeration(d):
    d = np.array(d)
    means = [np.mean(d * signs) for signs in itertools.product((-1, 1), repeat=len(d))]
    expected = np.mean([abs(m) >= abs(d.mean()) * (1 - 1e-9) for m in means])
    assert sign_flip(d) == pytest.approx(expected)


def test_paired_difference():
    found = paired([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.5, 1.4, 2.6, 3.5, 4.4, 5.6])
    assert found.mean == pytest.approx(0.5)
    assert found.low < 0.5 < found.high
    assert found.p == pytest.approx(2 / 64)
    same = paired([1.0, 2.0], [1.0, 2.0])
    assert (same.mean, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)


def test_divergence_counts_as_infinite():
    """Ranks take the place of sizes; two that both diverged are equal."""
    found = paired([math.inf] * 6, [1.0] * 6)
    assert found.mean is None
    assert found.p == pytest.approx(2 / 64)
    assert paired([math.inf] * 3, [math.inf] * 3).mean == 0.0
    mixed = paired([math.inf, 1.0, 2.0], [math.inf, 2.0, math.inf])
    assert mixed.mean is None
    with pytest.raises(ValueError, match="must not hold NaN"):
        paired([math.nan], [1.0])
    with pytest.raises(ValueError, match="same length"):
        paired([1.0], [1.0, 2.0])


def test_interval_covers_as_it_says():
    """95 % intervals of n normal pairs hold the truth in 95 % of 600 samples, ± 2.7 %: three standard errors; of exponential
    ones, which are skewed, in 85 % and more."""
    rng = np.random.default_rng(0)
    for n in (2, 6, 20):
        for draw, truth, least, most in ((rng.normal, 0.0, 0.923, 0.977), (rng.exponential, 1.0, 0.85, 0.95)):
            found = [interval(d) for d in draw(size=(600, n))]
            assert least <= np.mean([low <= truth <= high for low, high in found]) <= most
    assert interval(np.array([1.0])) == (-math.inf, math.inf)
    assert interval(np.array([1.0, 3.0])) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-4)  # t(.975; 1) = 12.7062


def test_holm():
    """The textbook example: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02 (Holm 1979)."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.7, 0.8]) == [1.0, 1.0]


def test_ranks_weigh_differences_where_some_are_infinite():
    """One small loss, three large wins and an infinite one: ranks tell it from 4 wins against 1 of equal weight."""
    values, base = [1.0, 2.0, 3.0, 4.0, 0.0], [1.1, 1.0, 1.0, 1.0, math.inf]
    ranks = np.array([-1.0, 2.0, 3.0, 4.0, -5.0])
    means = [np.mean(ranks * signs) for signs in itertools.product((-1, 1), repeat=5)]
    expected = np.mean([abs(m) >= abs(ranks.mean()) - 1e-12 for m in means])
    assert paired(values, base).p == pytest.approx(expected)


@pytest.mark.parametrize("others", range(1, 9))
def test_seeds_that_are_enough(others):
    """All differences of one sign give the smallest p; Holm over all comparisons brings it below 5 % from that many seeds on."""

    def smallest(n):
        p = paired([1.0 + i for i in range(n)], [0.0] * n).p
        return holm([p] + [1.0] * (others - 1))[0]

    n = enough_seeds(others)
    assert smallest(n) < 0.05 <= smallest(n - 1)


@st.composite
def accuracies(draw):
    """Numbers of right answers of two variants out of as many images, over 6 to 10 seeds."""
    images, seeds = draw(st.sampled_from([297, 360, 10_000])), draw(st.integers(6, 10))
    least = draw(st.integers(0, images - 12))
    rights = st.lists(st.integers(least, least + 12), min_size=seeds, max_size=seeds)
    return images, draw(rights), draw(rights)


@given(accuracies())
def test_ties_of_accuracies(case):
    """Means of float32 numbers against whole numbers, all signs enumerated."""
    images, a, b = case
    values, base = (np.array(x, dtype=np.float32) / np.float32(images) for x in (a, b))
    d = [x - y for x, y in zip(a, b, strict=True)]
    sums = [abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in itertools.product((-1, 1), repeat=len(d))]
    expected = Fraction(sum(each >= abs(sum(d)) for each in sums), len(sums))
    assert paired(values, base).p == float(expected)


def test_a_tie_that_rounding_broke():
    """Six pairs of 360 images: whole numbers give 6 of 64, float32 as it is 4 of 64."""
    rights = [340, 335, 343, 343, 338, 338], [338, 333, 340, 344, 335, 337]
    a, b = (np.array(x, dtype=np.float32) / np.float32(360) for x in rights)
    d = a.astype(float) - b
    sums = [abs(float(np.dot(signs, d))) for signs in itertools.product((-1, 1), repeat=6)]
    assert np.mean([s >= abs(d.sum()) for s in sums]) == 4 / 64
    assert paired(a, b).p == 6 / 64


@pytest.mark.parametrize("worse", [1, 2])
def test_ties_of_ranks(worse):
    """A diverged pair ranks first; equal differences share a rank, whatever their last digits."""
    a = [np.inf] * worse + [0.3 + 1e-9, 0.5, 0.7 - 1e-9, 0.8]
    b = [0.1] * worse + [0.2, 0.4, 0.6, 1.0]
    # |d|: .1 three times, .2, infinity: ranks 2, 4 and the mean of the others
    top = 5 if worse == 1 else 5.5
    ranks = [top] * worse + [2, 2, 2, -4]
    sums = [
        abs(sum(s * r for s, r in zip(signs, ranks, strict=True))) for signs in itertools.product((-1, 1), repeat=len(ranks))
    ]
    assert paired(a, b).p == np.mean([s >= abs(sum(ranks)) for s in sums])
