"""Every snippet of README and the docs runs: Python as one program per page, and each `$ apollo-sandbox …` of a console."""

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if not {"generated", "notebooks"} & set(path.relative_to(ROOT).parts)
}
# Pages that train or check for more than a second.
SLOW = (
    *("README.md", "docs/experiments.md", "docs/how-to/export.md", "docs/how-to/tune.md"),
    *("docs/how-to/own-loop.md", "docs/how-to/same.md"),
    *(f"docs/tutorials/{name}.md" for name in ("curvature", "first-comparison", "own-network", "theorem")),
)
# What a page takes for granted, and names of its own.
SETUP = {
    "docs/experiments.md": """
import sandbox, torch
from torch.nn.functional import cross_entropy
network, X, y = torch.nn.Linear(3, 2), torch.randn(8, 3), torch.zeros(8, dtype=torch.long)
optimizer = sandbox.Optimizer(network.parameters(), "apollo")
""",
    "docs/how-to/own-loop.md": """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
sizes = {"vocab_size": 50, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**sizes, attn_implementation="eager"))
rows = [{"input_ids": torch.arange(k, k + 8), "labels": torch.arange(k, k + 8)} for k in range(16)]
arguments = TrainingArguments(
    ".", max_steps=3, learning_rate=0.01, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", max_grad_norm=0
)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.zeros(32, dtype=torch.long))
batches = torch.utils.data.DataLoader(data, 8)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
""",
}
# Pages that need packages of the extra `trainers`.
NEEDS = {"docs/how-to/own-loop.md": ("transformers", "lightning", "accelerate")}
# These need a cluster; tests/experiments/test_cluster.py runs dask and submitit on this machine.
COMPILED_ONLY = ("docs/cluster.md",)


def snippets(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def marked(pages):
    return [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in pages]


@pytest.mark.parametrize("page", marked(page for page, path in PAGES.items() if snippets(path.read_text(), "python")))
@pytest.mark.filterwarnings("ignore")
def test_python_runs(page, tmp_path, monkeypatch):
    """As a module of its own, so that a block or a task of the page has a source, as a user's has."""
    monkeypatch.chdir(tmp_path)
    code = "\n".join(snippets(PAGES[page].read_text(), "python"))
    if page in COMPILED_ONLY:
        ast.parse(code)
        return
    for package in NEEDS.get(page, ()):
        pytest.importorskip(package, exc_type=Exception)  # also where it cannot be imported, as beside a broken torchvision
    name = "snippets_of_" + re.sub(r"\W", "_", page)
    file = tmp_path / f"{name}.py"
    file.write_text(SETUP.get(page, "") + code)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, path in PAGES.items() if "$ apollo-sandbox" in path.read_text()])
def test_commands_run(page, tmp_path):
    commands = re.findall(r"^\$ apollo-sandbox (.*)$", PAGES[page].read_text(), re.MULTILINE)
    for command in commands:
        ran = subprocess.run(
            [sys.executable, "-m", "sandbox", *shlex.split(command, comments=True)],
            capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=600, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, (command, ran.stderr[-3000:])


def test_relative_links_and_pictures_exist():
    missing = []
    for page, path in PAGES.items():
        for target in re.findall(r"\]\(([^)#\s]+)\)", re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)):
            if "://" not in target and "generated/" not in target and not (path.parent / target).exists():
                missing.append((page, target))
    assert missing == []


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
