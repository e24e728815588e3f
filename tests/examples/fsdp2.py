"""A small character Transformer on packaged speeches, sharded by fully_shard, checkpointed and resumed:

    torchrun --nproc-per-node 2 tests/examples/fsdp2.py --folder results/fsdp2 --steps 200

Started again, on any number of processes, it goes on from its last checkpoint.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import sandbox
from sandbox.datasets.text import speeches

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="results/fsdp2")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
text = torch.tensor([min(ord(c), 127) for c in "\n".join(speeches()["train"][:20])])

torch.manual_seed(0)
blocks = [nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(2)]
model = nn.Sequential(nn.Embedding(128, 64), *blocks, nn.Linear(64, 128))
for layer in (*blocks, model):
    fully_shard(layer)
optimizer = sandbox.Optimizer(model.named_parameters(), "apollow", lr=0.01)

step, states = (
    torch.zeros((), dtype=torch.int64),
    dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True)),
)
if os.path.exists(os.path.join(args.folder, ".metadata")):
    dcp.load({"step": step, **states}, checkpoint_id=args.folder)
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
while step < args.steps:
    step += 1
    draw = torch.Generator().manual_seed(int(step))
    starts = torch.randint(len(text) - 33, (16,), generator=draw).chunk(world)[rank]  # this rank's share of the batch
    batch = torch.stack([text[i : i + 33] for i in starts])
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % args.every == 0 or step == args.steps:
        dist.all_reduce(mean := loss.detach() / world)
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.save({"step": step, **states}, checkpoint_id=args.folder)
        if rank == 0:
            print(f"step {int(step)}: loss {mean:.17g}", flush=True)
dist.destroy_process_group()
