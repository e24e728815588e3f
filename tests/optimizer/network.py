"""A small network, its data, and its training."""

import torch


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3), torch.nn.LayerNorm(3)).to(dtype)


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(20, n, generator=generator, dtype=torch.float64).to(dtype) for n in (5, 3))


def loss_of(model, dtype=torch.float64):
    X, y = data(dtype)
    return (model(X) - y).square().mean()


def train(optimizer, model, steps, scheduler=None, dtype=torch.float64):
    second = any(g["recipe"].analysis.second_order for g in optimizer.param_groups)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, dtype)
        if not second:
            loss.backward()
        return loss

    losses = []
    for _ in range(steps):
        losses.append(float(optimizer.step(closure).detach()))
        if scheduler is not None:
            scheduler.step()
    return losses


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
