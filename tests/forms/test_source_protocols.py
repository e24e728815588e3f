"""Files in the form of benchmarks, called as those call them."""

import collections
import enum
import importlib
import json
import sys
import types

import pytest
import torch

import variants
from sandbox import cli
from sandbox.forms.source import protocols


class Workload:
    """A workload as AlgoPerf's runner passes it, of one linear layer."""

    step_hint = 40

    def model_fn(self, *, params, augmented_and_preprocessed_input_batch, model_state, mode, rng, update_batch_norm):
        assert mode.name == "TRAIN"
        assert params.training
        return params(augmented_and_preprocessed_input_batch["inputs"]), model_state

    def loss_fn(self, *, label_batch, logits_batch, mask_batch):
        assert mask_batch is None
        return {
            "summed": (logits_batch - label_batch).square().sum(),
            "n_valid_examples": torch.tensor(float(len(label_batch))),
        }


@pytest.mark.parametrize("name", ["apollo", "adamw"])
def test_a_submission_trains_as_the_runner_calls_it(name, tmp_path, monkeypatch):
    assert cli.main(["source", name, "--form", "algoperf", "--out", str(tmp_path / f"submitted_{name}")]) == 0
    spec = types.ModuleType("algoperf.spec")
    spec.ForwardPassMode = enum.Enum("ForwardPassMode", "TRAIN EVAL")
    package = types.ModuleType("algoperf")
    package.spec = spec
    monkeypatch.setitem(sys.modules, "algoperf", package)
    monkeypatch.setitem(sys.modules, "algoperf.spec", spec)
    monkeypatch.syspath_prepend(tmp_path)
    submission = importlib.import_module(f"submitted_{name}.submission")

    space = json.loads((tmp_path / f"submitted_{name}" / "tuning_search_space.json").read_text())
    assert all(0 < entry["min"] < entry["max"] and entry["scaling"] == "log" for entry in space.values())
    point = {key: (entry["min"] * entry["max"]) ** 0.5 for key, entry in space.items()}
    assert point["learning_rate"] == pytest.approx(variants.get(name).lr)
    hyperparameters = collections.namedtuple("Hyperparameters", point)(**point)

    torch.manual_seed(0)
    model, workload, rng = torch.nn.Linear(3, 1), Workload(), None
    X = torch.randn(64, 3)
    y = X @ torch.tensor([[1.0], [-2.0], [0.5]])
    assert submission.get_batch_size("mnist") > 0
    state = submission.init_optimizer_state(workload, model, None, hyperparameters, rng)
    assert state["optimizer"].state_dict()
    queue = iter([{"inputs": X, "targets": y}] * workload.step_hint)
    before = (model(X) - y).square().mean().item()
    rest = dict(current_params_types=None, loss_type=None, eval_results=[], rng=rng, hyperparameters=hyperparameters)
    rates = []
    for k in range(workload.step_hint):
        batch = submission.data_selection(workload, queue, state, model, None, hyperparameters, k, rng)
        rates.append(state["optimizer"].param_groups[0]["lr"])
        state, model, model_state = submission.update_params(
            workload=workload,
            current_param_container=model,
            model_state=None,
            batch=batch,
            optimizer_state=state,
            global_step=k,
            train_state={},
            **rest,
        )
    state, model, model_state = submission.prepare_for_eval(
        workload=workload, current_param_container=model, model_state=None, optimizer_state=state, global_step=k, **rest
    )
    assert (model(X) - y).square().mean().item() < before
    assert rates[0] < rates[1] > rates[-1] > 0


def test_the_sections_of_a_script_make_an_optimizer_of_mean_gradients():
    """The script's gradients are those of a sum over tokens: steps are those of their mean."""
    model = torch.nn.Linear(2, 1, bias=False)
    scope = {"model": model}
    exec(protocols.nanogpt("sgd"), scope)
    (optimizer,) = scope["optimizers"]
    assert optimizer.param_groups[0]["initial_lr"] == optimizer.param_groups[0]["lr"] == variants.get("sgd").lr
    before = model.weight.detach().clone()
    model.weight.grad = torch.full_like(model.weight, float(protocols.TOKENS))
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - variants.get("sgd").lr)


def test_a_benchmark_gives_no_closure():
    with pytest.raises(ValueError, match="'sophia-h' takes its loss from a closure"):
        protocols.algoperf("sophia-h")
