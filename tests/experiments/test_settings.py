"""Keyword arguments, options of the commands and their help are those of the settings; checked when they are built."""

import inspect
import math
import os

import pytest

import sandbox
from sandbox.cli.commands import parse
from sandbox.experiments.settings import ComparisonSettings, InspectionSettings, SweepSettings

OPTIONS = dict(
    accumulate=1, autocast=None, state_dtype=None, device="cpu", compile_model=False, threads=1, ranks=1, time_limit=None
)
EXECUTION = dict(backend="eager", probes=(), jobs=1, executor=None, callbacks=())
CALL = dict(steps=None, out=None, reuse=False, progress=None)
SEARCH = dict(rates=5, spacing=math.sqrt(10), search=None, trials=None, limit=None)
COMPARE = dict(
    target=None,     seeds=10, tuning_seeds=3, tuner="coordinate", budget="steps", warmup=None, schedule="constant", evaluations=None, evaluate_every=None,
    vectorised=True, every=10, **SEARCH, **CALL, **EXECUTION, **OPTIONS,
)  # fmt: skip
INSPECT = dict(
    samples=5, lr=None, seed=0, seeds=5, method="exact", num_vectors=200, tuning_seeds=3, **{**SEARCH, "rates": 1}, **CALL,
    **EXECUTION,
)  # fmt: skip
SWEEP = dict(seeds=1, warmup=0, schedule="constant", compiled=False, memory=2**30, **SEARCH, **CALL)
PUBLIC = [
    pytest.param(sandbox.compare, ["recipes", "task"], COMPARE, id="compare"),
    pytest.param(sandbox.inspect, ["recipes", "task"], INSPECT, id="inspect"),
    pytest.param(sandbox.sweep, ["recipe", "task", "vary"], SWEEP, id="sweep"),
]


@pytest.mark.parametrize(("function", "leading", "keywords"), PUBLIC)
def test_public_functions_take_the_settings_by_keyword(function, leading, keywords):
    """Names and defaults as in version 0.1, each with a text in the docstring."""
    parameters = inspect.signature(function).parameters
    assert [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD] == leading
    assert {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY} == keywords
    assert all(f"\n    {name}: " in function.__doc__ for name in keywords)
    with pytest.raises(TypeError, match="sedes"):
        function(*leading, sedes=3)


@pytest.mark.parametrize(
    ("command", "keywords", "own"),
    [
        (["compare", "apollo"], COMPARE, {"spacing": 3.1623, "jobs": os.cpu_count(), "search": (), "steps": ()}),
        (["curvature", "apollo"], INSPECT, {"spacing": 3.1623, "jobs": os.cpu_count(), "search": ()}),
        (["sweep", "apollo", "--vary", "lr=1,2"], SWEEP, {"spacing": 3.1623, "memory": 1.0, "search": ()}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_commands_have_the_options_of_the_functions(command, keywords, own, capsys):
    """With their defaults, but for those that differ on the line; and a help text for each."""
    parsed = parse(command)
    given = vars(parsed) | vars(getattr(parsed, "run", None) or type("", (), {})())
    offered = {name: value for name, value in given.items() if name in keywords}
    assert offered == {name: value for name, value in {**keywords, **own}.items() if name in offered}
    left_out = {"executor", "callbacks", "progress", "reuse"} & set(keywords)
    assert set(keywords) - set(offered) == left_out | ({"probes"} if command[0] == "curvature" else set())
    with pytest.raises(SystemExit):
        parse([command[0], "--help"])
    text = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in text for name in offered)


@pytest.mark.parametrize(
    ("settings", "wrong", "says"),
    [
        (ComparisonSettings, {"seeds": 1}, "seeds must be at least 2, got 1"),
        (ComparisonSettings, {"warmup": -1}, "warmup must be at least 0, got -1"),
        (ComparisonSettings, {"trials": 0}, "trials must be at least 1, got 0"),
        (ComparisonSettings, {"ranks": 2, "device": "cuda"}, "ranks=2 train on the CPU"),
        (ComparisonSettings, {"jobs": 0}, "jobs must be at least 1, got 0"),
        (InspectionSettings, {"steps": 0}, "steps must be at least 1, got 0"),
        (InspectionSettings, {"seed": -1}, "seed must be at least 0, got -1"),
        (InspectionSettings, {"lr": math.nan}, "lr must be a number above 0, got nan"),
        (InspectionSettings, {"lr": 0.1, "rates": 3}, "lr=0.1 leaves nothing to search"),
        (SweepSettings, {"spacing": 1}, "spacing must lie in (1, 1000], got 1"),
        (SweepSettings, {"steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_settings_check_themselves(settings, wrong, says):
    settings()
    with pytest.raises(ValueError) as caught:
        settings(**wrong)
    assert says in str(caught.value)


def test_old_names_stay():
    from sandbox.experiments.runs.outside import Outside

    assert sandbox.Outside is Outside is sandbox.TorchOptimizer
