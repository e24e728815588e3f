"""Checks and timings on a GPU, in one go of about eight minutes:  make bench-gpu

    every variant eager = compiled = scripted = reference, float32;  bfloat16 parameters;  state in bfloat16;  fully_shard on one
    device;  torch.compile's mode "reduce-overhead" (CUDA graphs);  the table of `make bench` on the card, with the share of the
    card's copy bandwidth and kernel launches a step.

Results go to tests/benchmarks/results/gpu-<card>.json.  Without a GPU it says so and exits with 2.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import sandbox
import variants
from sandbox.backends.inductor.compiled import Compiled
from sandbox.experiments.reports.manifest import environment
from tests.benchmarks.contenders import SHAPES, parameters

logging.getLogger("torch._inductor.cudagraph_utils").setLevel(logging.ERROR)  # says for each graph why it was skipped

BACKENDS = ("eager", "compiled", "scripted")  # each against "reference"
# float32, 20 steps of a smooth function: sums in another order, amplified
TOLERANCE = 2e-3
HALF = 2e-2  # bfloat16: an entry now and then goes to the other neighbour, 1/128 away
# Bytes that a step must move a parameter (float32), as in the issue: AdamW reads p, g, m, v and writes p, m, v.
BYTES = {"torch AdamW fused": 28, "adamw": 28, "apollo": 40, "apollow": 44, "scale-invariant": 48}


def trajectory(
    name: str, backend: Any, device: str, dtype: torch.dtype = torch.float32, steps: int = 20, **options: Any
) -> list[torch.Tensor]:
    """Twenty steps on Σ ½ h θ² + w (1 - cos θ) from a fixed start; one tensor large enough to go its own way.

    options: of the optimizer.
    """
    draw = torch.Generator().manual_seed(0)
    shapes = [(40, 30), (7,), (), (6, 3, 5, 5), (300, 500), (64, 64)]

    def drawn(scale: float) -> list[torch.Tensor]:
        return [(scale * torch.randn(s, generator=draw)).to(device, dtype) for s in shapes]

    params, w = [p.requires_grad_() for p in drawn(1.0)], drawn(0.5)
    h = [(0.2 + torch.rand(s, generator=draw)).to(device, dtype) for s in shapes]
    recipe = variants.get(name)
    optimizer = sandbox.Optimizer(params, recipe, lr=0.002, backend=backend, **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = sum((0.5 * a * p.square() + b * (1 - p.cos())).float().sum() for p, a, b in zip(params, h, w, strict=True))
        if not recipe.analysis.second_order:
            loss.backward()  # type: ignore[union-attr]
        return loss  # type: ignore[return-value]

    for _ in range(steps):
        optimizer.step(closure)
    return [p.detach().float() for p in params]


def distance(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    """Largest |x - y| / (0.1 + |x|)."""
    return max(float(((x - y).abs() / (0.1 + x.abs())).max()) for x, y in zip(a, b, strict=True))


def check_backends(names: list[str], device: str) -> dict[str, dict[str, float]]:
    """Distance of each backend's trajectory to the reference, for every variant."""
    found = {}
    for name in names:
        start = time.perf_counter()
        reference = trajectory(name, "reference", device)
        found[name] = {b: attempt(name, b, device, reference) for b in BACKENDS}
        row = "  ".join(f"{b} {d:.1e}" for b, d in found[name].items())
        print(f"{name:26} {row}  ({time.perf_counter() - start:.1f} s)", flush=True)
    return found


def attempt(name: str, backend: str, device: str, reference: list[torch.Tensor]) -> float:
    """Distance of one backend's trajectory to the reference; infinite, with the reason printed, where it does not run."""
    try:
        return distance(reference, trajectory(name, backend, device))
    except Exception:
        traceback.print_exc()
        return float("inf")


def half_state(device: str) -> dict[str, float]:
    """Distance of Apollo with its state in bfloat16 to the same by the reference, which rounds with the same bits."""
    half = {"state_dtype": torch.bfloat16, "seed": 0}
    right = trajectory("apollo", "reference", device, **half)
    return {b: distance(right, trajectory("apollo", b, device, **half)) for b in ("eager", "compiled")}


def one_rank(device: str) -> dict[str, float]:
    """Distance of Apollo on a network under fully_shard, on this device alone, to the same network without."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def trained(backend: str, mesh: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(600, 512), torch.nn.Tanh(), torch.nn.Linear(512, 10)).to(device)
        if mesh is not None:
            fully_shard(model, mesh=mesh)
        optimizer = sandbox.Optimizer(model.named_parameters(), "apollo", lr=0.01, backend=backend)
        x = torch.randn(64, 600, device=device)
        for _ in range(10):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]

    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh(device, (1,))
        return {b: distance(trained("reference", None), trained(b, mesh)) for b in ("eager", "compiled")}
    finally:
        dist.destroy_process_group()


def cuda_graphs(device: str) -> dict[str, float]:
    """Apollo in torch.compile's mode "reduce-overhead" against the reference, and the graphs that Inductor recorded and skipped."""
    counters = torch._dynamo.utils.counters["inductor"]
    counters.clear()
    far = distance(trajectory("apollo", "reference", device), trajectory("apollo", Compiled(mode="reduce-overhead"), device))
    recorded = counters.get("cudagraph_recorded_non_static_inputs", 0)
    return {"distance": far, "recorded": recorded, "skipped": counters.get("cudagraph_skips", 0)}


def copy_bandwidth(device: str) -> float:
    """Bytes a second of a device-to-device copy, read and written."""
    a = torch.empty(2**26, device=device)
    b = torch.empty_like(a)
    return 2 * a.numel() * 4 / timed(lambda: b.copy_(a), device, 20)


def timed(call: Callable[[], Any], device: str, rounds: int = 30) -> float:
    """Median seconds of a call, the device waited for."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        call()
        wait()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[5:])


def launches(call: Callable[[], Any]) -> int:
    """Kernels that a call launches."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return sum(e.count for e in profiled.key_averages() if "LaunchKernel" in e.key)


def contenders() -> dict[str, Callable[[list[torch.Tensor]], Any]]:
    """What is timed on the card."""
    o = torch.optim
    made: dict[str, Callable[[list[torch.Tensor]], Any]] = {
        "torch AdamW fused": lambda p: o.AdamW(p, fused=True),
        "torch AdamW foreach": lambda p: o.AdamW(p, foreach=True),
    }
    for recipe in ("apollo", "scale-invariant", "apollow", "adamw"):
        for label, options in (("compiled", {}), ("compiled flat", {"flat": True})):
            made[f"{recipe} {label}"] = lambda p, r=recipe, k=options: sandbox.Optimizer(
                p, r, backend="compiled", nonfinite="pass", **k
            )
    made["apollo reduce-overhead"] = lambda p: sandbox.Optimizer(
        p, "apollo", backend=Compiled(mode="reduce-overhead"), nonfinite="pass"
    )
    made["apollo eager"] = lambda p: sandbox.Optimizer(p, "apollo", nonfinite="pass")
    made["apollo compiled, state bfloat16"] = lambda p: sandbox.Optimizer(
        p, "apollo", backend="compiled", nonfinite="pass", state_dtype=torch.bfloat16
    )
    return made


def times(device: str, shapes: list[str], bandwidth: float) -> dict[str, list[dict[str, Any]]]:
    """The table of each shape."""
    found: dict[str, list[dict[str, Any]]] = {}
    for shape in shapes:
        print(f"\n{shape}\n{'':28} {'ms':>8} {'ratio':>6} {'of copy':>8} {'launches':>9}")
        base, rows = None, []
        for name, make in contenders().items():
            params = parameters(shape, device)
            count = sum(p.numel() for p in params)
            try:
                optimizer = make(params)
                optimizer.step()
                seconds = timed(optimizer.step, device)
            except Exception as error:  # what does not run is a result too
                rows.append({"name": name, "error": f"{type(error).__name__}: {error}"[:300]})
                print(f"{name:28} {rows[-1]['error'][:90]}", flush=True)
                continue
            base = base or seconds
            key = next((k for k in BYTES if name.startswith(k)), "")
            share = BYTES.get(key, 0) * count / seconds / bandwidth
            rows.append(
                {
                    "name": name,
                    "ms": 1000 * seconds,
                    "ratio": seconds / base,
                    "of_copy": share,
                    "launches": launches(optimizer.step),
                }
            )
            row = rows[-1]
            print(f"{name:28} {row['ms']:8.3f} {row['ratio']:6.2f} {share:8.2f} {row['launches']:9}", flush=True)
        found[shape] = rows
    return found


def main(arguments: list[str] | None = None) -> int:
    """Runs everything; 1 where a backend differs from the reference, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu runs the same script for a test of it")
    parser.add_argument("--variants", nargs="*", default=variants.names())
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        print("No GPU that torch can use: nothing was measured.  `make bench` measures on the CPU.")
        return 2
    card = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    print(f"{card}, torch {torch.__version__}\n")
    alike = check_backends(given.variants, given.device)
    half = {b: distance(*(trajectory("apollo", x, given.device, torch.bfloat16) for x in ("reference", b))) for b in BACKENDS}
    print("bfloat16 parameters: " + ", ".join(f"{b} {d:.1e}" for b, d in half.items()))
    state, sharded = half_state(given.device), one_rank(given.device)
    print("state in bfloat16: " + ", ".join(f"{b} {d:.1e}" for b, d in state.items()))
    print("fully_shard on one device: " + ", ".join(f"{b} {d:.1e}" for b, d in sharded.items()))
    graphs = cuda_graphs(given.device)
    print(f"CUDA graphs (mode reduce-overhead), apollo: {graphs}")
    bandwidth = copy_bandwidth(given.device)
    print(f"copy bandwidth: {bandwidth / 1e9:.0f} GB/s")
    table = times(given.device, given.shapes, bandwidth)
    facts = {
        "card": card,
        "alike": alike,
        "bfloat16": half,
        "state_bfloat16": state,
        "fully_shard": sharded,
        "copy_bytes_a_second": bandwidth,
        "cuda_graphs": graphs,
        "times": table,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"gpu-{card.replace(' ', '-').lower()}.json"
    path.write_text(json.dumps({**facts, "environment": environment()}, indent=1) + "\n")
    print(f"written to {path}")
    wrong = [n for n, d in alike.items() if max(d.values()) > TOLERANCE]
    limits = {"bfloat16 parameters": (half, HALF), "state in bfloat16": (state, HALF), "fully_shard": (sharded, TOLERANCE)}
    wrong += [f"{label}, {b}" for label, (found, most) in limits.items() for b, d in found.items() if not d <= most]
    wrong += ["apollo under CUDA graphs"] if graphs["distance"] > TOLERANCE else []
    if wrong:
        print(f"NOT equal to the reference within {TOLERANCE} ({HALF} with bfloat16): {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
