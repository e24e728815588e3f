"""Who trains what: in comparisons each optimizer gets the parameters whose roles it is meant for, and the report says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sandbox
import variants
from sandbox import TorchOptimizer
from sandbox.experiments.runs.methods import method
from sandbox.experiments.runs.trained import portions
from sandbox.tasks import get


class Net(nn.Module):
    """An embedding of ten words, a hidden map, a head of four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.out = nn.Embedding(10, 6), nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(self.words(x)).tanh())


def task(**options: Any) -> sandbox.Task:
    words = torch.arange(40) % 10
    data = (words, (words * 7) % 4)
    return sandbox.Task(
        name="words", model=Net, train=data, validation=data, steps=4, batch_size=8,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]), **options,
    )  # fmt: skip


def test_a_run_of_muon_is_that_of_its_parts() -> None:
    """One by one: Muon on the hidden map, Adam on the rest, at 0.015 of its rate, given as groups by hand."""
    muon = variants.get("muon")
    (made,) = method(muon).make([{"params": list(Net().named_parameters())}], 0.01, {}, task().parameter_roles)
    assert [bool("curvature.v" in made.state[p]) for p in made.param_groups[0]["params"]] == [True, False, True, True, True]


def test_portions() -> None:
    """Tensors and parameters by hand: the embedding 60, the body 30 + 5, the head 20 + 4."""
    words = task()
    assert portions(words, method("adamw")) == []
    assert portions(words, method("muon")) == [("muon", "hidden", 1, 30), ("adam", "embedding, bias, head", 4, 89)]
    torchs = method("torch.optim:Muon")
    assert portions(words, torchs) == [
        ("Muon", "hidden", 1, 30),
        ("adamw", "two axes or more, fewer than two axes", 4, 89),
    ]
    shampoo = portions(words, method("shampoo"))
    assert [row[0] for row in shampoo] == ["shampoo", "adagrad"]
    assert [row[3] for row in shampoo] == [110, 9]


def test_torch_muon_leaves_embeddings_and_heads_alone() -> None:
    """What torch's Muon is given by default, and by the roles and axes that one asks for."""
    start, words = Net(), task()
    groups = [{"params": list(start.named_parameters())}]

    def given(optimizer: TorchOptimizer) -> set[str]:
        first = optimizer.make(groups, 0.01, {}, words.parameter_roles)[0]
        mine = {id(p) for group in first.param_groups for p in group["params"]}
        return {name for name, p in start.named_parameters() if id(p) in mine}

    assert given(TorchOptimizer("torch.optim:Muon")) == {"body.weight"}
    assert given(TorchOptimizer("torch.optim:Muon", only="matrices", rest="adamw")) == {
        "words.weight",
        "body.weight",
        "out.weight",
    }
    assert given(TorchOptimizer("torch.optim:SGD", lr=0.1, only=["head", "bias"], rest="adamw")) == {
        "out.weight",
        "out.bias",
        "body.bias",
    }
    with pytest.raises(ValueError, match=r"unknown value of only 'heads'.*'head'"):
        TorchOptimizer("torch.optim:SGD", lr=0.1, only="heads", rest="adamw")


def test_the_report_says_who_trains_what(tmp_path: Path) -> None:
    """In the terminal's tables, the file, the page, and when it is read again; a variant that trains nothing is named."""
    conv = sandbox.Task(
        name="head", model=lambda: nn.Linear(3, 2), train=(torch.ones(16, 3), torch.ones(16, 2)), steps=2, batch_size=4,
        validation=(torch.ones(16, 3), torch.ones(16, 2)), loss=lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]),
    )  # fmt: skip
    result = sandbox.compare(["muon", "adamw"], conv, rates=1, seeds=2, out=tmp_path / "head")
    assert "Trains no parameter of this task itself, but leaves all to others: muon" in str(result)
    result = sandbox.compare(["muon", "adamw"], task(), rates=1, seeds=2, out=tmp_path / "words")
    line = ["muon", "muon", "hidden", "1", "30", "25.2 %"]
    for shown in (str(result), (tmp_path / "words" / "table.md").read_text(), str(sandbox.load(tmp_path / "words"))):
        assert any(
            [cell.strip() for cell in row.replace("|", "  ").split("  ") if cell.strip()] == line for row in shown.splitlines()
        )
    assert "Who trains what" in (tmp_path / "words" / "report.html").read_text()
    facts = json.loads((tmp_path / "words" / "manifest.json").read_text())
    assert facts["trained"] == {"muon": [["muon", "hidden", 1, 30], ["adam", "embedding, bias, head", 4, 89]]}


def test_together_is_one_by_one() -> None:
    """A vectorised grid of muon gives the losses of single runs: both know the roles."""
    words = get("digits-mlp")
    rates = [0.01, 0.02]
    grid = sandbox.ensemble.run("muon", words, lr=rates, seeds=[0], steps=5, evaluations=1)
    for i, lr in enumerate(rates):
        (optimizer,) = method("muon").make([{"params": list(words.init(0).items())}], lr, {}, words.parameter_roles)
        params = dict(zip(words.init(0), optimizer.param_groups[0]["params"], strict=True))
        for batch, _ in zip(words.batches(0), range(5), strict=False):
            for p in params.values():
                p.requires_grad_(True).grad = None
            words.loss(params, batch).backward()
            optimizer.step()
        for name, p in params.items():
            torch.testing.assert_close(grid.params[name][i], p.detach(), rtol=1e-4, atol=1e-6)  # float32, five steps


def test_a_task_says_what_no_rule_knows() -> None:
    """roles= of a task comes before the rules; a name that nothing matches is an error."""
    assert task(roles={"body": "recurrent"}).parameter_roles()["body.weight"].role == "recurrent"
    with pytest.raises(ValueError, match="no parameter's name matches 'bodies'"):
        task(roles={"bodies": "hidden"}).parameter_roles()
