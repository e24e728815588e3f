"""What users of other optimizers have reported, made with ours and with torch.optim; docs/explanation/public-reports.md lists them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedulers
from torch.optim import swa_utils

import sandbox
from tests.optimizer.network import loss_of, network


def run(optimizer, model, steps, scheduler=None, loss=loss_of):
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def cyclic(model, optimizer):
    run(optimizer, model, 8, schedulers.CyclicLR(optimizer, 1e-3, 1e-1, step_size_up=3))


def one_cycle(model, optimizer):
    run(optimizer, model, 8, schedulers.OneCycleLR(optimizer, max_lr=0.1, total_steps=10))


def plateau(model, optimizer):
    scheduler = schedulers.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    for i in range(5):
        run(optimizer, model, 1)
        scheduler.step(1.0 + i)


def averaged_model(model, optimizer):
    averaged, scheduler = swa_utils.AveragedModel(model, use_buffers=True), swa_utils.SWALR(optimizer, 0.05, anneal_epochs=3)
    for _ in range(5):
        run(optimizer, model, 1, scheduler)
        averaged.update_parameters(model)
    model.load_state_dict(averaged.module.state_dict())


def clipped_and_accumulated(model, optimizer):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        for _ in range(2):
            (loss_of(model) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def frozen_for_a_while(model, optimizer):
    for wanted in (True, False, True):
        model[0].weight.requires_grad_(wanted)
        run(optimizer, model, 2)


def data_replaced(model, optimizer):
    run(optimizer, model, 2)
    for p in model.parameters():
        p.data = p.data.clone() * 1.5
    run(optimizer, model, 2)


def groups_by_hand(model, optimizer):
    run(optimizer, model, 2)
    params, group = list(model.parameters()), optimizer.param_groups[0]
    optimizer.param_groups = [{**group, "params": params[:2]}, {**group, "params": params[2:], "lr": 0.1}]
    run(optimizer, model, 2)
    optimizer.param_groups[0]["params"].append(params[2])
    del optimizer.param_groups[1]["params"][0]
    run(optimizer, model, 2)


def state_dropped(model, optimizer):
    run(optimizer, model, 2)
    optimizer.state.clear()
    run(optimizer, model, 2)


def closure_without_gradients_around(model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    with torch.no_grad():
        for _ in range(3):
            optimizer.step(closure)


def rate_zero_at_first(model, optimizer):
    optimizer.param_groups[0]["lr"] = 0.0
    run(optimizer, model, 2)
    optimizer.param_groups[0]["lr"] = 0.1
    run(optimizer, model, 2)


def copied_with_its_model(model, optimizer):
    run(optimizer, model, 2)
    model2, optimizer2 = copy.deepcopy((model, optimizer))
    run(optimizer2, model2, 3)
    model.load_state_dict(model2.state_dict())


def in_default_bfloat16(model, optimizer):
    torch.set_default_dtype(torch.bfloat16)
    try:
        run(optimizer, model, 3)
    finally:
        torch.set_default_dtype(torch.float32)


def gradients_expanded(model, optimizer):
    run(optimizer, model, 3, loss=lambda model: sum(p.sum() for p in model.parameters()))


LIVES = [cyclic, one_cycle, plateau, averaged_model, clipped_and_accumulated, frozen_for_a_while, data_replaced, groups_by_hand]
LIVES += [state_dropped, closure_without_gradients_around, rate_zero_at_first, copied_with_its_model, in_default_bfloat16]
LIVES += [gradients_expanded]


@pytest.mark.parametrize("backend", ["eager", "scripted"])
@pytest.mark.parametrize("live", LIVES, ids=lambda live: live.__name__)
def test_lives_are_those_of_torchs_adamw(live, backend):
    mine, torchs = network(), network()
    live(mine, sandbox.Optimizer(mine.parameters(), "adamw", lr=0.01, weight_decay=0.1, backend=backend))
    live(torchs, torch.optim.AdamW(torchs.parameters(), lr=0.01, weight_decay=0.1))
    for p, q in zip(mine.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-13)  # rounding of ten steps in float64


def test_a_group_without_parameters():
    mine, torchs = network(), network()
    groups = [{"params": []}, {"params": mine.parameters()}]
    optimizer = sandbox.Optimizer(groups, "adamw", lr=0.01, weight_decay=0.1)
    run(optimizer, mine, 2)
    optimizer.load_state_dict(optimizer.state_dict())
    run(optimizer, mine, 2)
    run(torch.optim.AdamW(torchs.parameters(), lr=0.01, weight_decay=0.1), torchs, 4)
    for p, q in zip(mine.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)  # rounding of four steps in float64


@pytest.mark.parametrize("name", ["muon", "soap", "shampoo", "splus", "apollo", "adan", "lbfgs"])
@pytest.mark.filterwarnings("ignore:recipe 'muon' treats")
def test_zero_gradients_of_zero_weights(name):
    """At first, and again after some steps: nothing moves where all is zero, and nothing becomes NaN."""
    shapes = [(3, 4), (4,), (2, 3, 2, 2), (), (0, 3)]
    params = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = sandbox.Optimizer(params, name)
    for step in range(9):
        for p in params:
            p.grad = torch.full_like(p, 0.1 * step) if 3 <= step < 6 else torch.zeros_like(p)
        optimizer.step()
        assert all(bool(p.isfinite().all()) for p in params)
        assert step >= 3 or all(not bool(p.any()) for p in params)


@pytest.mark.filterwarnings("ignore:recipe 'muon' treats")
def test_muon_does_not_decay_what_has_no_gradient():
    layer = nn.Linear(4, 3)
    before = layer.weight.detach().clone()
    optimizer = sandbox.Optimizer(layer.parameters(), "muon", lr=0.1, weight_decay=0.5)
    layer.bias.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(layer.weight, before)


def test_lbfgs_goes_on_at_a_minimum():
    p, scales = nn.Parameter(torch.tensor([3.0, -2.0, 1.0], dtype=torch.float64)), torch.tensor([1.0, 10.0, 100.0])
    optimizer = sandbox.Optimizer([p], "lbfgs", lr=1.0)

    def closure():
        optimizer.zero_grad()
        loss = (scales * p.square()).sum()
        loss.backward()
        return loss

    for _ in range(60):
        optimizer.step(closure)
    assert p.abs().max() < 1e-12  # the quadratic's minimum is 0, to rounding of the start


@pytest.mark.parametrize("other", ["in place", "accumulated"])
def test_hessian_diagonals_of_equal_losses_are_equal(other):
    def train(inplace, halves):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=inplace), nn.Linear(4, 3)).double()
        optimizer = sandbox.Optimizer(model.parameters(), "adahessian", lr=0.01)
        for _ in range(3):
            optimizer.step(lambda: sum(loss_of(model) / halves for _ in range(halves)))
        return list(model.parameters())

    pairs = zip(train(False, 1), train(other == "in place", 2 if other == "accumulated" else 1), strict=True)
    for p, q in pairs:
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)  # ½ + ½ is exact, sums of the graph are not


def test_weights_tied_by_one_parameter():
    def train(make):
        torch.manual_seed(0)
        embedding, head = nn.Embedding(6, 4).double(), nn.Linear(4, 6, bias=False).double()
        head.weight = embedding.weight
        model = nn.Sequential(embedding, head)
        run(make(model.parameters()), model, 4, loss=lambda model: F.cross_entropy(model(torch.arange(6)), torch.arange(6)))
        return embedding.weight.detach()

    mine = train(lambda params: sandbox.Optimizer(params, "adamw", lr=0.01, weight_decay=0.1))
    torchs = train(lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1))
    torch.testing.assert_close(mine, torchs, rtol=1e-12, atol=1e-14)  # rounding of four steps in float64
