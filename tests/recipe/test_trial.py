"""Blocks of a user's own that are wrong are refused before anything is trained, with the block and the slot in the message."""

import io

import numpy as np
import pytest
import torch

import sandbox
import variants
from sandbox.blocks import Curvature, Gradient, Rectifier, block
from tests.outside_blocks import Halfway, MeanAbsolute, Remembering


@block
class Constant(Rectifier):
    value: float = 0.0

    def read(self, B):
        return torch.full_like(B, self.value)


@block
class Undeclared(Curvature):
    """B = |d|."""

    def step(self, x, **state):
        return x.d_old.abs(), {}


@block
class TooEarly(Gradient):
    """g = m."""

    def step(self, x, **state):
        return x.m, {}


@block
class Misspelt(Gradient):
    """g = θ."""

    def step(self, x, **state):
        return x.thet, {}


@block
class Drawing(Rectifier):
    """D = |B| + 1 + U."""

    def read(self, B):
        return B.abs() + 1 + torch.rand_like(B)


@block
class InPlace(Rectifier):
    """D = |B| + 1."""

    def read(self, B):
        return B.abs_().add_(1)


@block
class Longer(Gradient):
    """g, twice."""

    def step(self, x, **state):
        return torch.stack([x.value, x.value]), {}


@block
class WithNumPy(Rectifier):
    """D = |B| + 1."""

    def read(self, B):
        return torch.from_numpy(np.abs(B.numpy()) + 1)


class Undecorated(Rectifier):
    """D = |B| + 1."""

    def read(self, B):
        return B.abs() + 1


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        ("apollo", {"rectifier": Constant()}, "block Constant in slot 'rectifier' gave D = 0; D must be above 0"),
        ("apollo", {"rectifier": Constant(value=-1.0)}, "block Constant in slot 'rectifier' gave D = -1"),
        ("sgd", {"curvature": Undeclared()}, r"block Undeclared in slot 'curvature': .* declares it, needs = \('d_old',\)"),
        ("apollo", {"gradient": (TooEarly(),)}, "TooEarly in slot 'gradient': .*m is not there yet.*slot 'moment' makes it"),
        ("apollo", {"gradient": (Misspelt(),)}, "Misspelt in slot 'gradient': .*'thet'; did you mean 'theta'"),
        ("apollo", {"rectifier": Drawing()}, "two equal steps differ, so Drawing draws random numbers"),
        ("apollo", {"rectifier": InPlace()}, "InPlace changes what it is given in place"),
        ("sgd", {"gradient": (Longer(),)}, "Longer"),
        ("apollo", {"rectifier": WithNumPy()}, "block WithNumPy in slot 'rectifier': .*torch's functions"),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value)[:20],
)
@pytest.mark.parametrize("backend", ["eager", "scripted"])
def test_wrong_blocks_are_named_before_anything_is_trained(base, changes, message, backend):
    with pytest.raises(ValueError, match=message):
        sandbox.Optimizer([torch.ones(3, 4, requires_grad=True)], variants.get(base).replace(**changes), backend=backend)


def test_a_class_without_the_decorator_is_refused():
    with pytest.raises(TypeError, match="Undecorated in slot 'rectifier' is no block yet: put @block above its class"):
        variants.get("apollo").replace(rectifier=Undecorated())


def test_a_block_without_a_docstring_shows_its_name():
    assert Constant().text == "Constant"


def test_right_blocks_pass():
    for changes in (
        {"rectifier": Halfway()},
        {"curvature": MeanAbsolute()},
        {"curvature": Remembering(), "rectifier": Halfway()},
    ):
        sandbox.Optimizer([torch.ones(3, 4, requires_grad=True)], variants.get("apollo").replace(**changes))


@block
class Vanishing(Rectifier):
    """D = 1 as long as |θ| is small: above 0 in a trial, 0 later on."""

    state = {"D": "element"}

    def update(self, x, *, D):
        return {"D": torch.where(x.theta.abs() < 100, 1.0, 0.0).to(D.dtype)}


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_the_step_that_made_a_parameter_infinite_is_named(backend):
    p = torch.full((2, 3), 1000.0, requires_grad=True)
    optimizer = sandbox.Optimizer([("w", p)], variants.get("apollo").replace(rectifier=Vanishing()), lr=0.1, backend=backend)
    p.grad = torch.ones(2, 3)
    optimizer.step()
    p.grad = torch.full((2, 3), torch.nan)
    with pytest.raises(
        FloatingPointError, match="'w' itself is not finite since its last step, number 1: block Vanishing in slot"
    ):
        optimizer.step()


@pytest.mark.parametrize("backend", ["eager", "reference", "scripted"])
def test_nothing_moves_where_a_tensor_has_another_shape(backend):
    q, p = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(4, 3))
    optimizer = sandbox.Optimizer([("q", q), ("p", p)], "apollo", backend=backend)
    q.grad, p.grad = torch.ones(2), torch.ones(4, 3)
    optimizer.step()
    p.data, p.grad = torch.ones(1, 3), torch.ones(1, 3)  # which broadcasts to the old shape
    before = q.clone(), optimizer.state[q]["moment.m"].clone()
    with pytest.raises(ValueError, match=r"'p'.*\(1, 3\).*\(4, 3\)"):
        optimizer.step()
    assert torch.equal(q, before[0])
    assert torch.equal(optimizer.state[q]["moment.m"], before[1])


def test_parameter_groups_are_loaded_with_weights_only():
    recipe = variants.get("adabound").replace(rectifier=Halfway(sigma=0.3))
    optimizer = sandbox.Optimizer([torch.ones(3, requires_grad=True)], recipe)
    file = io.BytesIO()
    torch.save([{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups], file)
    file.seek(0)
    (group,) = torch.load(file, weights_only=True)
    assert group["recipe"] == recipe
    sandbox.Optimizer([torch.ones(3, requires_grad=True)], group["recipe"])


def test_parameters_without_values_are_named():
    with pytest.raises(ValueError, match="'w' is on the meta device"):
        sandbox.Optimizer([("w", torch.ones(2, device="meta", requires_grad=True))], "apollo")


def test_scripts_and_exports_take_names(tmp_path):
    sandbox.script("sgd", tmp_path / "sgd.pt")
    assert (tmp_path / "sgd.pt").is_file()
    assert sandbox.export("sgd") is not None
