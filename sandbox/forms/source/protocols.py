"""A written file in the form of two benchmarks: an AlgoPerf submission, and the section of a modded-nanogpt track-3 script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sandbox.forms.source.file import File
from sandbox.forms.source.layout import fit

TOKENS = 524_288  # of a batch of the script, whose loss is their sum

_ALGOPERF = '''

def get_batch_size(workload_name):
    """Returns the batch size of every workload: to be set for each before a submission is scored."""
    return 128


def init_optimizer_state(workload, model_params, model_state, hyperparameters, rng):
    """Returns the optimizer and its rate: linear over 5 % of the steps, then a cosine to 0."""
{make}
    warmup = max(int(0.05 * workload.step_hint), 1)
    rest = max(workload.step_hint - warmup, 1)

    def factor(k):
        return (k + 1) / warmup if k < warmup else 0.5 + 0.5 * math.cos(math.pi * min((k - warmup) / rest, 1.0))

    return {{"optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, factor)}}


def update_params(
    workload, current_param_container, current_params_types, model_state, hyperparameters, batch, loss_type,
    optimizer_state, eval_results, global_step, rng, train_state=None,
):  # fmt: skip
    """Makes one step on a batch; returns the optimizer's state, the model and its state."""
    model = current_param_container
    model.train()
    model.zero_grad(set_to_none=True)
    logits, model_state = workload.model_fn(
        params=model,
        augmented_and_preprocessed_input_batch=batch,
        model_state=model_state,
        mode=spec.ForwardPassMode.TRAIN,
        rng=rng,
        update_batch_norm=True,
    )
    loss = workload.loss_fn(label_batch=batch["targets"], logits_batch=logits, mask_batch=batch.get("weights"))
    summed, examples = loss["summed"], loss["n_valid_examples"]
    if torch.distributed.is_initialized():
        summed, examples = (torch.distributed.nn.functional.all_reduce(x) for x in (summed, examples))
    (summed / examples).backward()
    optimizer_state["optimizer"].step()
    optimizer_state["scheduler"].step()
    return optimizer_state, model, model_state


def prepare_for_eval(
    workload, current_param_container, current_params_types, model_state, hyperparameters, loss_type,
    optimizer_state, eval_results, global_step, rng,
):  # fmt: skip
    """Leaves everything as it is."""
    return optimizer_state, current_param_container, model_state


def data_selection(
    workload, input_queue, optimizer_state, current_param_container, model_state, hyperparameters, global_step, rng
):
    """Returns the next batch."""
    return next(input_queue)
'''

_NANOGPT = """
########################################
#       Init & Optim Hyperparams       #
########################################

{make}
optimizers = [optimizer]
for group in optimizer.param_groups:
    group["initial_lr"] = group["lr"]


def to_mean(optimizer, args, kwargs):
    # the script's loss is a sum over tokens; numbers in units of the gradient are meant for a mean
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None if p.grad is None else p.grad / {tokens}


optimizer.register_step_pre_hook(to_mean)
"""


def algoperf(recipe: Any, *, stored: bool = False, fixed: Sequence[str] = ()) -> dict[str, str]:
    """Returns the files of an AlgoPerf submission by name: its functions around the file's class, and the space to search.

    The space: rates and positive numbers a factor of 10 around the recipe's, shares β by 1 - β a factor of 3, both log-uniform.
    """
    written = _one_gradient(recipe, stored, fixed)
    space: dict[str, Any] = {}
    arguments: list[str] = []
    for name, value in written.defaults().items():
        if isinstance(value, tuple):
            keys = [f"one_minus_beta{i}" for i in (1, 2)]
            space |= {key: _log(1 - beta, 3.0, 1.0) for key, beta in zip(keys, value, strict=True)}
            arguments.append(f"betas=({', '.join(f'1 - hyperparameters.{key}' for key in keys)})")
        elif written.is_share(name):
            space[f"one_minus_{name}"] = _log(1 - value, 3.0, 1.0)
            arguments.append(f"{name}=1 - hyperparameters.one_minus_{name}")
        elif value > 0:
            key = "learning_rate" if name == "lr" else name
            space[key] = _log(value, 10.0)
            arguments.append(f"{name}=hyperparameters.{key}")
    make = fit(f"    optimizer = {written.title}(", ["model_params.parameters()", *arguments], ")")
    head = written.text()
    if "import math\n" not in head:
        head = head.replace("from typing import Any\n", "import math\nfrom typing import Any\n", 1)
    head = head.replace("import torch\n", "import torch\nfrom algoperf import spec\n", 1)
    submission = head + _ALGOPERF.format(make="\n".join(make))
    return {"submission.py": submission, "__init__.py": "", "tuning_search_space.json": json.dumps(space, indent=2) + "\n"}


def nanogpt(recipe: Any, *, stored: bool = False, fixed: Sequence[str] = ()) -> str:
    """Returns the sections of a track-3 script of modded-nanogpt: the optimizer's class, and the lines that make it."""
    written = _one_gradient(recipe, stored, fixed)
    return written.text() + _NANOGPT.format(make=f"optimizer = {written.title}(model.parameters())", tokens=TOKENS)


def _one_gradient(recipe: Any, stored: bool, fixed: Sequence[str]) -> File:
    written = File(recipe, stored=stored, fixed=fixed)
    if written.recipe.analysis.inputs:
        raise ValueError(f"recipe {written.recipe.name!r} takes its loss from a closure, which the benchmarks do not give")
    return written


def _log(value: float, factor: float, most: float = float("inf")) -> dict[str, Any]:
    return {"min": value / factor, "max": min(value * factor, most), "scaling": "log"}
