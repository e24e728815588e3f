"""Networks as users bring them: batch norm, dropout, a recurrent one that carries its state; data with augmentation."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import sandbox

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + X[:, 1] > 0).long()


def accuracy(model, batch):
    return (model(batch[0]).argmax(-1) == batch[1]).float().mean()


def error(model, batch):
    return 1 - accuracy(model, batch)


def cross_entropy(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


class Jittered(Dataset):
    """Rows with noise from all three global generators."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i] + 0.1 * (random.random() + np.random.rand() + torch.rand(())), Y[i]  # noqa: NPY002


class Net(sandbox.Task):
    """Batch norm and dropout, on augmented rows."""

    name, epochs, batch_size = "net", 2, 10
    metrics = {"accuracy": accuracy, "error": error}
    lower_is_better = ("error",)

    def model(self):
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))

    def data(self, split):
        return Jittered() if split == "train" else (X[:30], Y[:30])

    def loss(self, model, batch):
        return cross_entropy(model, batch)

    def groups(self, model):
        return sandbox.tasks.no_decay(model)


class Tagger(nn.Module):
    """An LSTM over a text cut into windows; its state is carried from one window to the next."""

    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(5, 4), nn.LSTM(4, 6), nn.Linear(6, 5)
        self.register_buffer("h", torch.zeros(1, 4, 6))
        self.register_buffer("c", torch.zeros(1, 4, 6))

    def forward(self, x):
        found, (h, c) = self.lstm(self.embed(x), (self.h, self.c))
        self.h, self.c = h.detach(), c.detach()
        return self.out(functional.dropout(found, 0.1, self.training))


class Text(sandbox.Task):
    """Truncated back-propagation through time on a finite loader."""

    name, steps = "text", 9
    metrics = {"perplexity": cross_entropy}
    lower_is_better = ("perplexity",)

    def model(self):
        return Tagger()

    def data(self, split):
        text = torch.randint(0, 5, (25, 4), generator=torch.Generator().manual_seed(1))
        return lambda seed: ((text[i : i + 6], text[i + 1 : i + 7]) for i in range(0, 24, 6) if i + 7 <= 25)

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    def evaluate(self, model, split):
        loss, *_ = super().evaluate(model, split)
        return loss, float(np.exp(loss))

    def scores(self):
        return {"perplexity": self.loss}

    def begin(self, model, split):
        model.h, model.c = torch.zeros(1, 4, 6), torch.zeros(1, 4, 6)
