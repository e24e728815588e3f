"""Whole iterations: forward, backward, step.  What an optimizer's step is of one, with each backend.

    python -m tests.benchmarks.iterations [--device cuda] [--tasks lenet-fashion …] [--rounds 30] [--threads 1]

Contenders take turns in random order on the same network and batch; medians of milliseconds.  A task whose data are not on this
machine is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import sandbox
from sandbox import tasks
from sandbox.experiments.reports.manifest import environment
from sandbox.tasks import Task

TASKS = ("lenet-fashion", "resnet8-fashion", "lstm-speeches", "transformer-verses")
BACKENDS = ("eager", "compiled", "scripted", "reference")


def optimizers(params: list[torch.Tensor]) -> dict[str, Any]:
    """Fused AdamW, and apollo in each backend."""
    made: dict[str, Any] = {"torch AdamW fused": torch.optim.AdamW(params, lr=0.0, fused=True)}
    return made | {f"apollo {b}": sandbox.Optimizer(params, "apollo", lr=0.0, backend=b) for b in BACKENDS}


def measure(task: Task, device: str, rounds: int) -> dict[str, Any]:
    """Median milliseconds of forward and backward, and of a step of each optimizer (rate 0: the network stays as it is)."""
    model = task.start(0).to(device)
    batch = task.to(next(iter(task.batches(0))), torch.device(device))
    params = [p for p in model.parameters() if p.requires_grad]
    made = optimizers(params)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds: dict[str, list[float]] = {name: [] for name in ("forward and backward", *made)}

    def timed(name: str, call: Any) -> None:
        wait()
        start = time.perf_counter()
        call()
        wait()
        seconds[name].append(time.perf_counter() - start)

    def gradients() -> None:
        model.zero_grad()
        task.loss(model, batch).backward()

    for k in range(rounds + 3):
        for name in random.sample(list(made), len(made)):
            timed("forward and backward", gradients)
            timed(name, made[name].step)
        if k == 2:  # the first ones write and compile
            for times in seconds.values():
                times.clear()
    ms = {name: 1000 * statistics.median(times) for name, times in seconds.items()}
    whole = ms["forward and backward"]
    share = {name: value / (whole + value) for name, value in ms.items() if name in made}
    return {"tensors": len(params), "parameters": sum(p.numel() for p in params), "ms": ms, "share": share}


def table(found: dict[str, dict[str, Any]]) -> str:
    """One line per task and optimizer."""
    lines = []
    for name, row in found.items():
        head = f"{name}: {row['tensors']} tensors, {row['parameters'] / 1e6:.2f} M; forward and backward "
        lines.append(f"{head}{row['ms']['forward and backward']:.2f} ms")
        lines += [f"    {o:20} {row['ms'][o]:8.2f} ms, {100 * s:3.0f} % of the iteration" for o, s in row["share"].items()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Measures, prints and, with --out, keeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    found = {}
    for name in given.tasks:
        try:
            found[name] = measure(tasks.get(name), given.device, given.rounds)
        except (FileNotFoundError, ModuleNotFoundError) as error:
            print(f"{name} is left out: {error}")
            continue
        print(table({name: found[name]}), flush=True)
    if given.out is not None:
        given.out.write_text(
            json.dumps({"found": found, "threads": given.threads, "environment": environment()}, indent=1) + "\n"
        )
    return found


if __name__ == "__main__":
    main()
