"""A recipe as one Python file: it runs without this package, and makes the steps that the reference makes."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sandbox
import variants
from sandbox.blocks import ELEMENT, Curvature, Geometric, Rectifier, block
from sandbox.forms.source import source
from sandbox.optimizer.source_state import from_file, to_file
from tests import outside_blocks
from tests.forms import runner

PAGE = Path(__file__).parents[2] / "docs/how-to/source.md"
LONGEST, LONGEST_OF_MATRICES = 110, 160

# Recipes of one gradient whose blocks keep histories, or work at some steps only.
REFUSED = ("lbfgs", "sdlbfgs", "adaqn", "bfgs", "dfp", "sr1", "ggt", "soap", "tiger", "scion", "adam-mini")


def takes_one_gradient(name):
    analysis = variants.get(name).analysis
    return not (analysis.inputs or analysis.second_gradient or analysis.needs_rows or analysis.reads_out)


def reads_out(name):
    recipe = variants.get(name)
    return recipe.of(torch.empty(2, 2)).analysis.reads_out or recipe.of(torch.empty(2)).analysis.reads_out


WRITTEN = [name for name in variants.names() if takes_one_gradient(name) and not reads_out(name) and name not in REFUSED]

# Beside the variants: other options, functions of t, blocks from outside the package.
OTHERS = {
    "muon-bfloat16": (variants.get("muon").replace(solve=sandbox.blocks.Orthogonalize(bfloat16=True, scale="rms")), {}),
    "muon-exact": (variants.get("muon").replace(solve=sandbox.blocks.Orthogonalize(exact=True)), {}),
    "stored": (variants.get("apollow"), {"stored": True}),
    "fixed": (variants.get("apollo"), {"fixed": ("rectifier.sigma",)}),
    "schedule": (variants.get("adamw").replace(**{"moment.beta": Geometric(first=0.9, ratio=0.99)}), {}),
    "function": (variants.get("apollo").replace(**{"moment.beta": outside_blocks.decaying}), {}),
    "clipped": (variants.get("apollo").replace(gradient=(sandbox.blocks.ClipGlobalNorm(max_norm=0.5),)), {}),
    "channel-floor": (variants.get("scale-invariant").replace(scope="channel"), {}),
    "outside": (outside_blocks.recipe().replace(curvature=outside_blocks.MeanAbsolute()), {}),
}


def cases():
    yield from ((name, variants.get(name), {}) for name in WRITTEN)
    yield from ((name, *case) for name, case in OTHERS.items())


def stem(name):
    return f"file_{name.replace('-', '_')}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The trajectories of all files, trained in one process of their own."""
    folder = tmp_path_factory.mktemp("files")
    for name, recipe, options in cases():
        (folder / f"{stem(name)}.py").write_text(source(recipe, **options))
    subprocess.run([sys.executable, runner.__file__, str(folder)], check=True, timeout=280, cwd=folder)
    return torch.load(folder / "results.pt", weights_only=True)


def table(trained):
    """The page's rows: recipe -> (lines, largest difference)."""
    return {
        name: (len(source(name).splitlines()), (trained[stem(name)] - reference(name)).abs().max().item()) for name in WRITTEN
    }


def test_the_page_has_every_file_with_its_lines(trained):
    """`WRITE_TABLES=1` writes the table anew."""
    rows, text = table(trained), PAGE.read_text()
    if os.environ.get("WRITE_TABLES"):
        head = text[: text.index("|---|---|---|\n") + len("|---|---|---|\n")]
        PAGE.write_text(
            head + "".join(f"| {name} | {lines} | {f'{gap:.0e}' if gap else 0} |\n" for name, (lines, gap) in rows.items())
        )
    stated = dict(re.findall(r"^\| ([\w-]+) \| (\d+) \| [\de.+-]+ \|$", PAGE.read_text(), re.MULTILINE))
    assert stated == {name: str(lines) for name, (lines, _) in rows.items()}


def load(text, tmp_path, name="written"):
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the compiler looks it up
    spec.loader.exec_module(module)
    return runner.only_class(module)


def reference(recipe):
    return runner.train(lambda params: sandbox.Optimizer(params, recipe, backend="reference"))


@pytest.mark.parametrize("name", [name for name, _, _ in cases()])
def test_a_file_makes_the_reference_s_steps_without_the_package(name, trained):
    recipe = OTHERS[name][0] if name in OTHERS else variants.get(name)
    expected, steps = reference(recipe), trained[stem(name)]
    # both compute in float64, numbers of a step in another order: units in the last place, which 50 steps amplify
    torch.testing.assert_close(steps, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_is_short_and_has_its_numbers_as_defaults(name, tmp_path):
    text = source(name)
    matrices = variants.get(name).analysis.matrix
    together = 10 * (variants.get(name).scope == "global")  # tensors joined, and taken apart again
    assert len(text.splitlines()) <= (LONGEST_OF_MATRICES if matrices else LONGEST + together)
    assert max(map(len, text.splitlines())) <= 120
    recipe, cls = variants.get(name), load(source(name), tmp_path)
    defaults = cls([torch.zeros(2)]).defaults
    assert defaults["lr"] == recipe.lr
    assert set(recipe.matrices.hyperparameters().values()) - {0.0} <= {*defaults.values(), *defaults.get("betas", ())}
    assert str(recipe).splitlines()[0].partition(":")[0] in cls.__doc__


CLEAN = [
    "apollow",
    "adamw",
    "mars-adamw",
    "radam",
    "belief",
    "frozen",
    "channel-secant",
    "muon",
    "zhu",
    "sm3",
    "shampoo",
    "sophia-h",
]


def checked(folder, *command):
    for name in CLEAN:
        (folder / f"{name.replace('-', '_')}.py").write_text(source(name))
    tool = Path(sys.executable).parent / command[0]
    result = subprocess.run([tool, *command[1:], "."], cwd=folder, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr


def test_files_are_clean_to_ruff(tmp_path):
    rules = "E,F,W,I,B,UP,SIM,RET,PIE,D1"
    checked(tmp_path, "ruff", "check", "--isolated", "--line-length", "120", "--select", rules, "--ignore", "D107")
    checked(tmp_path, "ruff", "format", "--isolated", "--line-length", "120", "--check")


@pytest.mark.slow
def test_files_are_clean_to_mypy(tmp_path):
    checked(tmp_path, "mypy", "--strict", "--follow-imports=silent")


def test_a_file_has_the_comments_and_names_of_a_block_from_outside():
    text = source(outside_blocks.recipe().replace(curvature=outside_blocks.MeanAbsolute()))
    assert "# B ← β B + (1-β)|g|" in text
    assert "B_new = beta2 * B + (1 - beta2) * g.abs()" in text
    assert "D = B_new.abs() + sigma" in text


def test_options_leave_out_what_a_run_does_not_need():
    assert "sigma_old" in source("apollo")
    assert "sigma_old" not in source("apollo", fixed=("rectifier.sigma",))
    assert "d_old.copy_(d)" in source("apollo", stored=True)
    with pytest.raises(ValueError, match=r"fixed must name some of lr, rectifier\.sigma, got 'rectifier.sgima'"):
        source("apollo", fixed=("rectifier.sgima",))


@pytest.mark.parametrize("name", ["adahessian", "sophia-h"])
def test_a_file_of_second_order_takes_products_from_the_loss(name, tmp_path):
    """Of a loss whose Hessian is diagonal, z ⊙ Hz is that diagonal whatever z is drawn."""
    cls = load(source(name), tmp_path)

    def train(make):
        params = runner.parameters()
        optimizer = make(params)
        for k in range(30):
            runner.moved(optimizer, 0.05, k)
            shift = 0.1 * (k % 5)
            loss = optimizer.step(lambda s=shift: sum(((p - s) ** 4 + p.square()).sum() for p in params))
            assert not loss.requires_grad
        return torch.cat([p.detach().reshape(-1) for p in params])

    expected = train(lambda params: sandbox.Optimizer(params, name, backend="reference"))
    # rounding in float64, amplified by 30 steps
    torch.testing.assert_close(train(cls), expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(RuntimeError, match=r"needs step\(closure\)"):
        cls(runner.parameters()).step()


@pytest.mark.parametrize("name", ["apollo", "muon", "shampoo"])
def test_a_file_computes_in_the_precisions_of_the_optimizer(name, tmp_path):
    cls = load(source(name), tmp_path)

    def train(make):
        params = [torch.nn.Parameter(p.detach().float()) for p in runner.parameters()]
        optimizer = make(params)
        for k in range(5):
            runner.gradients(params, k)
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in params])

    expected = train(lambda params: sandbox.Optimizer(params, name, backend="reference"))
    # five steps in float32; numbers of a step are rounded to it after other operations
    torch.testing.assert_close(train(cls), expected, rtol=1e-5, atol=1e-6)


@block
class Choosing(Rectifier):
    """D = |B| + 1, or 1 where B is small."""

    def read(self, B):
        return B.abs() + 1 if float(B.abs().sum()) > 1 else B * 0 + 1


@block
class InPlace(Curvature):
    """B = |g|, made in place."""

    state = {"B": ELEMENT}

    def update(self, x, *, B):
        return {"B": x.g.clone().abs_()}


@block
class Drawing(Curvature):
    """B = a random number."""

    state = {"B": ELEMENT}

    def update(self, x, *, B):
        return {"B": torch.rand_like(B)}


@block
class ByShape(Rectifier):
    """D = |B| + 1, and 2 for vectors."""

    def read(self, B):
        return B.abs() + (2 if B.ndim == 1 else 1)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (sandbox.Recipe(rectifier=Choosing()), "block Choosing chooses by a value"),
        (sandbox.Recipe(curvature=InPlace()), "block InPlace writes in place"),
        (sandbox.Recipe(curvature=Drawing()), "block Drawing draws random numbers"),
        (sandbox.Recipe(rectifier=ByShape()), "ByShape chooses by the shape of a tensor"),
        (
            variants.get("adamw").replace(**{"moment.beta": lambda t: 0.9 if t < 10 else 0.5}),
            "a function of t chooses by a value",
        ),
        (variants.get("lbfgs"), "block TwoLoop in slot 'solve' keeps a history"),
        (variants.get("soap"), "block SOAPBasis in slot 'basis' works at some steps only"),
        (variants.get("sgd-qn"), "block SameBatch in slot 'pairs' takes more than a gradient: a second gradient"),
        (variants.get("ema-adamw"), "in slot 'readout' evaluates other weights than it trains"),
        (variants.get("kfac"), "block KroneckerFactors in slot 'basis' takes more than a gradient: G, A"),
        (variants.get("ema-adamw"), "WeightEMA in slot 'readout' evaluates other weights than it trains"),
    ],
)
def test_what_one_run_does_not_show_is_refused_by_name(recipe, said):
    with pytest.raises(ValueError, match="cannot be written as a file") as error:
        source(recipe)
    assert said in str(error.value)


def test_a_file_refuses_what_it_cannot_train(tmp_path):
    cls = load(source("apollo"), tmp_path)
    for name, value, interval in (("lr", -1.0, "[0, inf)"), ("beta", 1.0, "[0, 1)"), ("sigma", 0.0, "(0, inf)")):
        with pytest.raises(ValueError) as error:
            cls([torch.zeros(2)], **{name: value})
        assert f"{name} must lie in {interval}, got {value}" in str(error.value)
    with pytest.raises(ValueError, match=r"betas must lie in \[0, 1\)"):
        load(source("adam"), tmp_path, "adam")([torch.zeros(2)], betas=(0.9, 1.0))
    p = torch.zeros(2, dtype=torch.complex64, requires_grad=True)
    p.grad = torch.ones_like(p)
    with pytest.raises(TypeError, match="dense, real"):
        cls([p]).step()
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="dense, real"):
        cls(embedding.parameters()).step()


def test_a_closure_is_called_with_gradients_and_its_loss_returned(tmp_path):
    p = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = load(source("sgd"), tmp_path)([p], lr=0.1)

    def closure():
        loss = p.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    torch.testing.assert_close(p.detach(), torch.full((2,), 0.8, dtype=torch.float64))


def test_numbers_may_differ_between_groups_and_change_while_training(tmp_path):
    """The σ with which the last direction was made is that of the last step, in the file as in the optimizer."""
    cls = load(source("apollow"), tmp_path)

    def train(make, key, decay):
        params = runner.parameters()
        optimizer = make([{"params": params[:2], "lr": 0.02}, {"params": params[2:]}])
        for k in range(20):
            runner.gradients(params, k)
            optimizer.param_groups[1][key] = 0.01 * (1 + k % 3)
            optimizer.param_groups[0][decay] = 0.1 * (k % 4)
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in params])

    expected = train(lambda g: sandbox.Optimizer(g, "apollow", backend="reference"), "rectifier.sigma", "weight_decay")
    # as above: rounding in float64, amplified
    torch.testing.assert_close(train(cls, "sigma", "weight_decay"), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["apollow", "adamw", "belief", "monotone", "apollo-stable", "zhu", "muon", "shampoo"])
def test_checkpoints_convert_both_ways(name, tmp_path):
    cls = load(source(name), tmp_path)

    def new(params):
        return sandbox.Optimizer(params, name, backend="reference")

    def into_file(optimizer, params):
        written = cls(params)
        written.load_state_dict(to_file(name, optimizer.state_dict()))
        return written

    def out_of_file(optimizer, params):
        own = new(params)
        own.load_state_dict(from_file(name, optimizer.state_dict()))
        return own

    expected = runner.train(new)
    for make, half in ((new, into_file), (cls, out_of_file)):
        # rounding in float64, amplified by 25 steps
        torch.testing.assert_close(runner.train(make, half), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["adamw", "apollo"])
def test_a_step_can_be_compiled(name, tmp_path):
    cls = load(source(name), tmp_path)

    def train(compiled):
        # without the 0-d tensor: torch 2.13 loses what compiled code writes into one of float64
        params = runner.parameters()[1:]
        optimizer = cls(params)
        step = torch.compile(optimizer.step, backend="aot_eager") if compiled else optimizer.step
        for k in range(6):
            runner.gradients(params, k)
            step()
        return torch.cat([p.detach().reshape(-1) for p in params])

    # the compiler may fuse and reorder float64 operations
    torch.testing.assert_close(train(True), train(False), rtol=1e-12, atol=1e-14)


def test_a_recipe_and_the_command_write_the_same_file(tmp_path, capsys):
    from sandbox import cli

    out = tmp_path / "adamw.py"
    assert cli.main(["source", "adamw", "--out", str(out)]) == 0
    assert out.read_text() == variants.get("adamw").source() == sandbox.source("adamw")
    assert cli.main(["source", "apollo", "--stored"]) == 0
    assert capsys.readouterr().out == sandbox.source("apollo", stored=True)
    assert cli.main(["source", "kfac"]) == 2
    assert "KroneckerFactors" in capsys.readouterr().err
