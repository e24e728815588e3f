"""Several tasks and several lengths: each comparison is that of its task alone; profiles, bands, and fits of losses."""

import json
import math
import re

import numpy as np
import polars as pl
import pytest
from scipy import optimize, stats

import sandbox
from sandbox import cli, tasks
from sandbox.experiments.compare import compare
from sandbox.experiments.reports import charts
from sandbox.experiments.reports.comparisons import Comparisons
from sandbox.experiments.selection import scaling, targets

OPTIONS = dict(seeds=3, rates=1, steps=30, evaluations=10)
NAMES = ["sgd", "adamw"]
TASKS = ["logistic-breast-cancer", "ridge-diabetes"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return compare(NAMES, TASKS, out=tmp_path_factory.mktemp("several"), **OPTIONS)


def test_each_comparison_is_the_one_of_its_task_alone(result, tmp_path):
    """To the bit, with files of its own; all of them are read again from their folders."""
    assert isinstance(result, Comparisons)
    assert list(result) == TASKS
    timed = ["seconds_a_step"]
    for task in TASKS:
        alone = compare(NAMES, task, out=tmp_path / task, **OPTIONS)
        assert alone.runs.drop(timed).equals(result[task].runs.drop(timed))
        assert (result.folder / task / "report.html").exists()
    again = sandbox.load(result.folder)
    assert str(again) == str(result)
    assert again.frame.equals(result.frame)
    assert set(result.frame["comparison"]) == set(TASKS)
    with pytest.raises(KeyError, match="did you mean 'ridge-diabetes'"):
        result["ridge"]
    with pytest.raises(ValueError, match="holds results of comparisons"):
        compare(NAMES, "quadratic", out=result.folder, **OPTIONS)


def test_targets_are_what_the_first_variant_reaches(result):
    """From the rows alone, in NumPy: the median of the best values, and the first evaluation at it or beyond."""
    for task in TASKS:
        rows = result[task].runs.filter(pl.col("role") == "final").sort("variant", "seed", "step")
        values = {name: rows.filter(pl.col("variant") == name)["validation_metric"].to_numpy().reshape(3, 11) for name in NAMES}
        goal = np.median(values["sgd"].max(axis=1))
        assert result.goals[task] == goal
        steps = rows["step"].to_numpy()[:11]
        for name in NAMES:
            hits = [steps[v >= goal].min() if (v >= goal).any() else math.inf for v in values[name]]
            assert list(result.times()[name][task]) == hits
    assert f"accuracy ≥ {result.goals[TASKS[0]]:.4g}" in str(result)
    other = str(result.to_target({TASKS[0]: 0.5, TASKS[1]: "adamw"}))
    assert "accuracy ≥ 0.5" in other
    assert f"R² ≥ {result[TASKS[1]].goal('adamw'):.4g}" in other
    with pytest.raises(ValueError, match="unknown variant as target 'adam'"):
        result.to_target("adam")


def test_a_single_comparison_shows_its_target(tmp_path, capsys):
    command = ["compare", *NAMES, "--task", TASKS[0], "--seeds", "2", "--rates", "1", "--steps", "20", "--out", str(tmp_path)]
    assert cli.main([*command, "--target", "sgd"]) == 0
    text = capsys.readouterr().out
    assert "accuracy ≥" in text
    assert "a fair comparison has" in text
    assert "a fair comparison has" in (tmp_path / "table.md").read_text()
    assert "Time to the target" in (tmp_path / "report.html").read_text()
    assert cli.main([*command, "--target", "adam"]) == 2
    assert "unknown variant as target 'adam'; did you mean 'adamw'" in capsys.readouterr().err


def test_profiles_by_hand():
    """Three problems: a is fastest on two, twice as slow on the third; b is never there on the first."""
    times = {
        "a": {"x": [2.0, 1.0, 9.0], "y": [4.0] * 3, "z": [8.0] * 3},
        "b": {"x": [1.0, math.inf, math.inf], "y": [12.0] * 3, "z": [4.0] * 3},
    }
    a, b = targets.profiles(times, points=301, resamples=200)
    assert (a.rho[0], a.rho[100], b.rho[0], b.rho[199], b.rho[200]) == (2 / 3, 1, 1 / 3, 1 / 3, 2 / 3)
    assert a.ratio == 1
    assert b.ratio == pytest.approx(math.sqrt(3 * 0.5))
    medians = {name: {task: sorted(row)[1] for task, row in rows.items()} for name, rows in times.items()}
    assert a.score == targets.score(medians, points=301)["a"]
    for one in (a, b):
        assert all(low <= rho <= high for low, rho, high in zip(one.low, one.rho, one.high, strict=True))
        assert one.interval[0] <= one.score <= one.interval[1]
    assert targets.median([1.0, 2.0, math.inf, math.inf]) == 2.0  # the time by which half of them are there
    with pytest.raises(ValueError, match="as many seeds"):
        targets.profiles({"a": {"x": [1.0]}, "b": {"x": [1.0, 2.0]}})


def test_bands_are_those_of_scipys_bootstrap():
    """One seed per problem, so that problems alone are drawn: intervals of a share, from SciPy's percentile bootstrap."""
    draw = np.random.default_rng(1)
    a, b = draw.exponential(1.0, 25), draw.exponential(1.5, 25)
    times = {"a": {str(i): [v] for i, v in enumerate(a)}, "b": {str(i): [v] for i, v in enumerate(b)}}
    _, found = targets.profiles(times, points=4, resamples=4000)
    for k, tau in enumerate(found.ratios):
        within = (b / np.minimum(a, b) <= tau).astype(float)
        reference = stats.bootstrap((within,), np.mean, n_resamples=4000, method="percentile", rng=2).confidence_interval
        # 4,000 resamples of 25 shares: a percentile lies within a step of 1/25 of the exact one
        assert (found.low[k], found.high[k]) == pytest.approx((reference.low, reference.high), abs=1 / 25 + 1e-12)


def test_losses_fall_as_a_power_of_the_length():
    """Against SciPy's curve_fit on noisy losses, and exactly on exact ones."""
    lengths = [100, 200, 400, 800, 1600]
    exact = [3.0 * n**-0.7 + 0.25 for n in lengths]
    law = scaling.fit(lengths, exact)
    assert (law.alpha, law.B, law.beta) == pytest.approx((3.0, 0.7, 0.25), rel=1e-4)  # of a flat valley in B
    assert law.length(law.loss(300)) == pytest.approx(300)
    assert law.length(0.2) == math.inf
    noisy = np.array(exact) * (1 + 0.01 * np.random.default_rng(0).standard_normal(5))
    reference, _ = optimize.curve_fit(lambda n, a, b, c: a * n**-b + c, lengths, noisy, p0=(3, 0.7, 0.25), maxfev=20_000)
    found = scaling.fit(lengths, noisy)
    assert [found.loss(n) for n in lengths] == pytest.approx(
        [reference[0] * n ** -reference[1] + reference[2] for n in lengths]
    )
    assert scaling.fit([100, 200], [2.0, 1.0]) is None
    assert scaling.fit([100, 200, 400], [2.0, 1.0, math.inf]) is None
    assert scaling.fit([100, 200, 400], [1.0, 1.1, 1.2]) is None


def test_several_lengths(tmp_path, capsys):
    """A comparison at each; the first variant's losses fit themselves, so its speed-up is near 1."""
    steps = [str(word) for n in (10, 20, 40, 80) for word in ("--steps", n)]
    command = ["compare", *NAMES, "--task", TASKS[0], "--seeds", "2", "--rates", "1", *steps, "--out", str(tmp_path)]
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert "80 updates" in text
    result = sandbox.load(tmp_path)
    assert [each.plan.steps for each in result.comparisons.values()] == [10, 20, 40, 80]
    found = result.speedups()
    ends = {}
    for label, each in result.comparisons.items():
        last = each.runs.filter((pl.col("role") == "final") & (pl.col("step") == pl.col("steps")))
        ends |= {(name, each.plan.steps): last.filter(pl.col("variant") == name)["validation_loss"].mean() for name in NAMES}
        assert label == f"{TASKS[0]}, {each.plan.steps} updates"
    assert {(row["variant"], row["length"]): row["loss"] for row in found.iter_rows(named=True)} == pytest.approx(ends)
    lines = {row[0]: row[1] for row in result.checklist()[1]}
    assert lines["several lengths, sizes or tasks"] == "yes"
    assert cli.main(["report", str(tmp_path), "--target", "0.5"]) == 0
    assert "accuracy ≥ 0.5" in capsys.readouterr().out
    assert [json.loads((tmp_path / "manifest.json").read_text())["comparisons"][label] for label in result] == [
        each.folder.name for each in result.comparisons.values()
    ]


def test_the_page(result, drawn):
    """Links to the comparisons, and charts that Vega draws."""
    text = (result.folder / "report.html").read_text()
    assert all(f'href="{task}/report.html"' in text for task in TASKS)
    vega = pytest.importorskip("vl_convert")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    profiles = result.profiles()
    assert len(data[0]["rows"]) == 100 * len(profiles)
    lengths = [{"task": "t", "variant": n, "length": k, "loss": 1.0 + k, "speedup": 1.0} for n in NAMES for k in (1, 2)]
    drawings = [(charts.Chart("", "", **data[0]["chart"]), data[0]["rows"]), (charts.lengths(NAMES, ["t"]), lengths)]
    for chart, rows in drawings:
        for spec in chart.filled():
            shown = re.sub(r"<[^>]+>", "\n", vega.vegalite_to_svg(spec | {"datasets": {"table": rows}}))
            assert "sgd" in shown
            assert "$" not in shown
    assert (result.folder / "profiles.png").read_bytes()[:4] == b"\x89PNG"
    assert "score" in str([label.get_text() for label in result.plot().axes[0].get_legend().get_texts()])


def test_a_variant_that_fails_on_one_task(tmp_path):
    """There it reaches nothing; elsewhere it is compared. A task on which all fail is missing."""

    class Fussy(sandbox.TorchOptimizer):
        def make(self, groups, lr, *more):
            if sum(p.numel() for group in groups for _, p in group["params"]) < 20:
                raise ArithmeticError("too small")
            return super().make(groups, lr, *more)

    fussy = Fussy("torch.optim:SGD", lr=0.1, name="fussy")
    options = OPTIONS | {"seeds": 2}
    result = compare(["sgd", fussy], TASKS, out=tmp_path / "some", **options)
    assert [failure.variant for failure in result.failures] == ["fussy"]
    assert result.times()["fussy"]["ridge-diabetes"] == (math.inf, math.inf)
    assert "too small" in str(result)
    alone = compare([fussy], TASKS, out=tmp_path / "all", **options)
    assert alone.missing == ["ridge-diabetes"]
    assert list(alone) == ["logistic-breast-cancer"]


def test_suites_and_bad_input(tmp_path):
    assert [task.name for task in tasks.get_all("suite:small")] == list(tasks.SUITES["suite:small"])
    assert len(tasks.SUITES["suite:small"]) == 8
    for wrong, says in (
        ("suite:smal", "did you mean 'suite:small'"),
        ([], "must not be empty"),
        (["quadratic", "quadratic"], "two tasks are called 'quadratic'"),
    ):
        with pytest.raises(ValueError, match=says):
            compare(["sgd"], wrong, out=tmp_path, **OPTIONS)
    for steps in ([], [10, 10], [0, 10]):
        with pytest.raises(ValueError, match="steps must be"):
            compare(["sgd"], "quadratic", out=tmp_path, **{**OPTIONS, "steps": steps})
