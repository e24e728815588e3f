"""A small character Transformer on packaged speeches, sharded by fully_shard, checkpointed and resumed:

    torchrun --nproc-per-node 2 tests/examples/fsdp2.py --folder results/fsdp2 --steps 200

Where a process dies, torchrun ends the others.  Given again, on any number of processes, the command goes on from the last
checkpoint.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import sandbox
from sandbox.datasets.text import speeches

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, default=Path("results/fsdp2"))
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
text = torch.tensor([min(ord(c), 127) for c in "\n".join(speeches()["train"][:20])])

torch.manual_seed(0)
blocks = [nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)]
model = nn.Sequential(nn.Embedding(128, 32), *blocks, nn.Linear(32, 128))
for layer in (*blocks, model):
    fully_shard(layer)
optimizer = sandbox.Optimizer(model.named_parameters(), "apollow", lr=0.01)


def states():
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


saved = [int(file.parent.name) for file in args.folder.glob("*/.metadata")]  # which is written last
if saved:
    dcp.load(loaded := states(), checkpoint_id=args.folder / str(max(saved)))
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
for step in range(max(saved, default=0) + 1, args.steps + 1):
    draw = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - 33, (16,), generator=draw).chunk(world)[rank]  # this rank's share of the batch
    batch = torch.stack([text[i : i + 33] for i in starts])
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % args.every == 0 or step == args.steps:
        dcp.save(states(), checkpoint_id=args.folder / str(step))
        dist.all_reduce(mean := loss.detach() / world)
        if rank == 0:
            print(f"step {step}: loss {mean:.17g}", flush=True)
dist.destroy_process_group()
