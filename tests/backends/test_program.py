"""Steps recorded and run in pieces: how many there are, what is refused, and that threads do not share buffers."""

import collections
import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode

import sandbox
import variants
from sandbox.backends.tracing.record import NotRecordable, record
from sandbox.blocks import TwoLoop


def test_sizes_become_sizes_of_inputs():
    """Recorded at 3 and 5 rows, run at 7."""
    small, large = torch.ones(3, 2), torch.ones(5, 2)
    graph = record(lambda x: [x.new_zeros(x.shape[0], 4).add(x.sum()), (x + 1).mul_(2)], [small], [large])
    x = torch.arange(14.0).view(7, 2)
    zeros, doubled = graph(x)
    assert torch.equal(zeros, torch.full((7, 4), 91.0))  # 0 + … + 13
    assert torch.equal(doubled, 2 * x + 2)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: [x * x.shape[0] ** 2], "asks for a size"),
        (lambda x: [x if x.shape[0] < 4 else 2 * x], "another way for other sizes"),
        (lambda x: [x if x.sum() > 0 else 2 * x], "must not choose by the values"),
        (lambda x: [x + torch.rand_like(x)], "nor draw random numbers"),
    ],
)
def test_what_cannot_be_recorded(function, says):
    with pytest.raises(NotRecordable, match=says):
        record(function, [torch.ones(3)], [torch.ones(5)])


class Writing(TorchFunctionMode):
    """Counts, by the number of their entries, the buffers that operations with an `out` write into."""

    def __init__(self):
        super().__init__()
        self.sizes = collections.Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if kwargs and "out" in kwargs:
            self.sizes[result.numel()] += 1
        return result


@pytest.mark.parametrize(
    ("shape", "scope", "count"), [((500, 600), "parameter", 3), ((3, 500, 600), "channel", 3), ((512, 256), "parameter", 1)]
)
def test_a_large_tensor_runs_in_pieces_of_half_a_mebibyte(shape, scope, count):
    """300,000 entries of four bytes: three pieces; channels of that size: one each; 2¹⁷ are one."""
    p = torch.ones(shape, requires_grad=True)
    p.grad = torch.ones(shape)
    optimizer = sandbox.Optimizer([p], sandbox.Recipe(name="apollo", scope=scope), lr=0.1)
    optimizer.step()
    with Writing() as writing:
        optimizer.step()
    assert {size for size in writing.sizes if size > 1} == {p.numel() // count}
    assert writing.sizes[p.numel() // count] % count == 0


def test_two_threads_step_at_once():
    """Each thread has its own buffers: both end where one alone does, to the bit."""

    def train(seed, end):
        draw = torch.Generator().manual_seed(seed)
        p = torch.randn(200, 300, generator=draw).requires_grad_()
        optimizer = sandbox.Optimizer([p], "apollo", lr=0.01)
        for _ in range(20):
            p.grad = p.detach() + 0.1 * torch.randn(p.shape, generator=draw)
            optimizer.step()
        end[seed] = p.detach()

    alone, together = {}, {}
    for seed in (0, 1):
        train(seed, alone)
    threads = [threading.Thread(target=train, args=(seed, together)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(alone[seed], together[seed]) for seed in (0, 1))


@pytest.mark.parametrize(("pairs", "in_pieces"), [(10, True), (40, False)])
def test_long_histories_are_left_to_the_reference(pairs, in_pieces):
    """Without a warning: it is how they are meant to run."""
    p = torch.ones(4, 3, requires_grad=True)
    p.grad = torch.ones_like(p)
    recipe = variants.get("lbfgs").replace(solve=TwoLoop(memory=pairs))
    optimizer = sandbox.Optimizer([p], recipe, lr=0.1)
    optimizer.step()
    with Writing() as writing:
        optimizer.step()
    assert bool(writing.sizes) == in_pieces
