"""Methods with matrices and histories beside the published ones, on two layers of the Transformer, in turns in one process.

make bench
"""

import functools
import os

import pytest
import torch

import variants
from sandbox.blocks import Orthogonalize
from tests.benchmarks.contenders import ours, transformer
from tests.benchmarks.measure import Interleaved, table

LAYERS = transformer()[1:25]  # 24 tensors, 6.3 M parameters
MATRICES = [s for s in LAYERS if len(s) == 2]


def muon():
    """Matrices only, which is all that torch's takes; it iterates in bfloat16."""
    made = {"torch Muon": lambda p: torch.optim.Muon(p, lr=0.01, weight_decay=0.0)}
    half = variants.get("muon").replace(solve=Orthogonalize(bfloat16=True))
    for backend in ("eager", "compiled"):
        made |= {f"muon {backend}": ours("muon", backend=backend), f"muon in bfloat16 {backend}": ours(half, backend=backend)}
    return MATRICES, made


def soap():
    package = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer (extra bench) is the peer")
    made = {"pytorch_optimizer SOAP": lambda p: package.SOAP(p, lr=0.003)}
    return LAYERS, made | {f"soap {b}": ours("soap", backend=b) for b in ("eager", "compiled")}


class OnAQuadratic:
    """∇f = θ + c, by an operation that costs all contenders alike: where gradients stand still, no pair is taken."""

    def __init__(self, make, params):
        self.params, self.optimizer = params, make(params)
        self.c = [p.grad.clone() for p in params]

    def step(self):
        for p, c in zip(self.params, self.c, strict=True):
            torch.add(p.detach(), c, out=p.grad)
        self.optimizer.step()


def lbfgs():
    """Ten pairs, a step of a fixed length, one gradient per step."""

    def torchs(p):
        optimizer = torch.optim.LBFGS(p, lr=0.1, max_iter=1, history_size=10, tolerance_grad=0, tolerance_change=0)
        step = optimizer.step
        optimizer.step = lambda: step(lambda: torch.tensor(1.0))
        return optimizer

    made = {"torch LBFGS(10)": torchs} | {f"lbfgs {b}": ours("lbfgs", lr=0.1, backend=b) for b in ("eager", "compiled")}
    return LAYERS, {name: functools.partial(OnAQuadratic, make) for name, make in made.items()}


@pytest.mark.parametrize("family", [muon, soap, lbfgs])
def test_family(family, benchmark, capsys):
    torch.set_num_threads(os.cpu_count() or 1)
    shapes, made = family()
    run = Interleaved(shapes, made=made)
    benchmark.pedantic(run.round, rounds=21, warmup_rounds=3)  # two of SOAP's twenty steps find a new basis
    rows = benchmark.extra_info["rows"] = run.rows()
    run.close()
    benchmark.extra_info.update(shape=family.__name__, parameters=run.count, threads=torch.get_num_threads())
    with capsys.disabled():
        print(f"\n\n{family.__name__}: {len(shapes)} tensors, {run.count / 1e6:.2f} M parameters\n{table(rows)}")
