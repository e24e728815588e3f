"""What a process that makes a few steps does not wait for."""

import subprocess
import sys

PROGRAM = """
import sys, torch, sandbox
p = torch.ones(3, requires_grad=True)
optimizer = sandbox.Optimizer([p], "apollo", lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    p.square().sum().backward()
    optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
heavy = [name for name in ("torch._dynamo", "torch._inductor", "torch.onnx", "sympy") if name in sys.modules]
assert not heavy, heavy
"""


def test_an_optimizer_imports_no_compiler():
    """torch's own optimizers import torch._dynamo at their first call, which takes two seconds."""
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", PROGRAM], check=True)
