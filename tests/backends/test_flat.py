"""Parameters as views of one buffer."""

import copy
import subprocess
import sys

import pytest
import torch

import sandbox
import variants
from tests.backends.trajectories import assert_alike, reference, trajectory

pytestmark = pytest.mark.usefixtures("both_ways")


@pytest.mark.parametrize("name", ["apollo", "adamw", pytest.param("apollow", marks=pytest.mark.slow)])
def test_flat(name):
    recipe = variants.get(name)
    assert_alike(trajectory(recipe, torch.float64, "compiled", flat=True), reference(recipe, torch.float64), torch.float64)


def test_flat_parameters_survive_what_models_go_through():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
    model[1].weight = torch.nn.Parameter(model[0].weight.detach().t().contiguous())
    model[2].bias = model[1].bias  # tied
    model = model.double()
    twin = copy.deepcopy(model)
    flat = sandbox.Optimizer(model.parameters(), "apollo", lr=0.01, backend="compiled", flat=True)
    plain = sandbox.Optimizer(twin.parameters(), "apollo", lr=0.01)
    X = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for step in range(6):
        for m, o in ((model, flat), (twin, plain)):
            if step == 2:
                m.load_state_dict({k: v * 0.5 for k, v in m.state_dict().items()})
            if step == 4:
                m.to(torch.float64).to("cpu")
                for p in m.parameters():
                    p.data = p.data.clone()  # as `model.to` another device would: no view of the buffer any more
            o.zero_grad()
            m(X).square().mean().backward()
            o.step()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
    assert model[2].bias is model[1].bias
    storages = {p.untyped_storage().data_ptr() for p in model.parameters() if p.numel() < 10}
    assert len(storages) == 1


def test_flat_needs_the_compiled_backend():
    p = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="flat=True needs backend='compiled', got 'eager'"):
        sandbox.Optimizer([p], "apollo", flat=True)
    half = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    half.grad = torch.ones_like(half)
    with pytest.raises(ValueError, match="needs parameters in float32 or float64"):
        sandbox.Optimizer([half], "apollo", backend="compiled", flat=True).step()


DDP = """
import torch, torch.distributed as dist, torch.multiprocessing as mp, sys

def work(rank, port):
    import sandbox
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    X = torch.randn(8, 3, dtype=torch.float64)
    alone = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    alone.load_state_dict(model.state_dict())
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    flat = sandbox.Optimizer(wrapped.parameters(), "apollo", lr=0.05, backend="compiled", flat=True)
    plain = sandbox.Optimizer(alone.parameters(), "apollo", lr=0.05)
    for _ in range(4):
        flat.zero_grad(); plain.zero_grad()
        wrapped(X[4 * rank : 4 * rank + 4]).square().mean().backward()
        alone(X).square().mean().backward()
        flat.step(); plain.step()
    for p, q in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
    if rank == 0:
        print("alike")
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
"""


@pytest.mark.slow
def test_flat_under_distributed_data_parallel(tmp_path):
    """Two processes on gloo, each with half of the batch, equal one process with all of it."""
    (tmp_path / "ddp.py").write_text(DDP)
    command = [sys.executable, str(tmp_path / "ddp.py"), str(tmp_path / "store")]
    found = subprocess.run(command, capture_output=True, text=True)
    assert "alike" in found.stdout, found.stderr[-2000:]
