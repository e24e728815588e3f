"""Recipes with roles in `sandbox.Optimizer`: Muon as its authors use it, and the lives of such an optimizer."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn

import sandbox
import variants
from tests.light import BACKENDS

ADAM = variants.get("muon").vectors


class Words(nn.Module):
    """An embedding, a hidden layer with a norm, a head, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.fc = nn.Embedding(7, 6), nn.Linear(6, 5)
        self.norm, self.head = nn.LayerNorm(5), nn.Linear(5, 7)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.fc(self.wte(x))).tanh())


def model() -> Words:
    torch.manual_seed(3)
    return Words()


def train(network: nn.Module, optimizer: sandbox.Optimizer, steps: int, start: int = 0) -> list[Tensor]:
    """Makes steps on words that depend on the step alone; returns the parameters."""
    for t in range(start, start + steps):
        words = torch.randint(0, 7, (8, 3), generator=torch.Generator().manual_seed(t))
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(words).flatten(0, 1), words.flatten()).backward()
        optimizer.step()
    return [p.detach().clone() for p in network.parameters()]


def muon_with_aux_adam(network: Words, steps: int, lr: float, adam_lr: float) -> list[Tensor]:
    """KellerJordan/Muon's MuonWithAuxAdam, written out in float64: Muon for fc.weight, its Adam for the rest.

    Its update: m = β m + (1-β) g; u = (1-β) g + β m; five Newton-Schulz steps; times √max(1, rows/columns).  It adds 1e-7 to the
    norm, which is left out here: that alone moves the result by 3e-9.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    state: dict[str, list[Tensor]] = {
        name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in network.named_parameters()
    }
    for t in range(1, steps + 1):
        words = torch.randint(0, 7, (8, 3), generator=torch.Generator().manual_seed(t - 1))
        network.zero_grad()
        nn.functional.cross_entropy(network(words).flatten(0, 1), words.flatten()).backward()
        with torch.no_grad():
            for name, p in network.named_parameters():
                g, (m, v) = p.grad, state[name]
                assert g is not None
                if name == "fc.weight":
                    m.mul_(0.95).add_(g, alpha=0.05)
                    x = 0.95 * m + 0.05 * g
                    tall = x.shape[0] > x.shape[1]
                    x = x.mT if tall else x
                    x = x / x.norm()
                    for _ in range(5):
                        s = x @ x.mT
                        x = a * x + (b * s + c * s @ s) @ x
                    x = x.mT if tall else x
                    p.sub_(lr * max(1, p.shape[0] / p.shape[1]) ** 0.5 * x)
                else:
                    m.mul_(0.9).add_(g, alpha=0.1)
                    v.mul_(0.95).addcmul_(g, g, value=0.05)
                    p.sub_(adam_lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-10))
    return [p.detach().clone() for p in network.parameters()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_muon_is_its_authors(backend: str) -> None:
    """With the same routing, to the rounding of 20 steps in float64."""
    mine, theirs = model(), model()
    got = train(mine, sandbox.Optimizer(mine, "muon", lr=0.02, backend=backend), 20)
    expected = muon_with_aux_adam(theirs, 20, lr=0.02, adam_lr=3e-4)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


def test_the_pure_form_makes_the_same_steps() -> None:
    """`init` and `update` take the roles as a tree."""
    mine, theirs, muon = model(), model(), variants.get("muon")
    expected = train(mine, sandbox.Optimizer(mine, muon), 5)
    roles = {name: found.role for name, found in sandbox.roles(theirs).items()}
    params = {name: p.detach().clone() for name, p in theirs.named_parameters()}
    state = muon.init(params, roles=roles)
    for t in range(5):
        words = torch.randint(0, 7, (8, 3), generator=torch.Generator().manual_seed(t))

        def loss(p: dict[str, Tensor], words: Tensor = words) -> Tensor:
            return nn.functional.cross_entropy(torch.func.functional_call(theirs, p, (words,)).flatten(0, 1), words.flatten())

        state, params = muon.update(state, params, torch.func.grad(loss)(params), roles=roles)
    torch.testing.assert_close(list(params.values()), expected, rtol=1e-10, atol=1e-12)


def test_a_role_has_its_own_recipe_and_rate() -> None:
    """roles.head: its numbers stand in the group, its rate keeps the proportion, and a scheduler moves both."""
    muon = variants.get("muon").replace(roles={"embedding": "vectors", "head": ADAM.replace(lr=1e-3, name="adam for heads")})
    one, two = model(), model()
    optimizer = sandbox.Optimizer(one, muon)
    assert optimizer.param_groups[0]["roles.head.curvature.beta"] == 0.95
    optimizer.param_groups[0]["lr"] = 0.01  # half of muon's: 5e-4 for heads, 1.5e-4 for the rest
    optimizer.param_groups[0]["roles.head.curvature.beta"] = 0.5
    by_hand = [
        {"params": [two.fc.weight], "recipe": variants.get("muon").matrices, "lr": 0.01},
        {"params": [two.head.weight], "recipe": ADAM.replace(**{"curvature.beta": 0.5}), "lr": 5e-4},
        {
            "params": [p for name, p in two.named_parameters() if name not in ("fc.weight", "head.weight")],
            "recipe": ADAM,
            "lr": 1.5e-4,
        },
    ]
    got, expected = train(one, optimizer, 6), train(two, sandbox.Optimizer(by_hand, ADAM), 6)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


def test_checkpoints_carry_the_roles() -> None:
    """Resumed bitwise; other roles are refused by name."""
    one = model()
    optimizer = sandbox.Optimizer(one, "muon")
    train(one, optimizer, 3)
    two, buffer = copy.deepcopy(one), io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    resumed = sandbox.Optimizer(two, "muon")
    resumed.load_state_dict(saved)
    third, copied = copy.deepcopy((one, optimizer))
    expected = train(one, optimizer, 4, 3)
    assert all(map(torch.equal, train(two, resumed, 4, 3), expected))
    assert all(map(torch.equal, train(third, copied, 4, 3), expected))
    with pytest.raises(ValueError, match=r"parameter 'fc\.weight' has role 'hidden' in the checkpoint and 'head' here"):
        sandbox.Optimizer(model(), "muon", roles={"fc.weight": "head"}).load_state_dict(saved)


def test_a_late_group_and_lists_of_another_length() -> None:
    """A group that joins has its own roles; a parameter taken out of one list alone is an error, not another's role."""
    network = model()
    late = nn.Linear(4, 4).double()
    optimizer = sandbox.Optimizer(network, "muon")
    optimizer.add_param_group({"params": [("late.weight", late.weight)], "roles": ["embedding"]})
    assert "curvature.v" in optimizer.state[late.weight]
    del optimizer.param_groups[0]["params"][0]
    with pytest.raises(ValueError, match="6 parameters and 7 roles"):
        train(network, optimizer, 1)


def test_bare_tensors_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"'embedding' and 'head' apart.*sandbox\.Optimizer\(model, 'muon'\)"):
        sandbox.Optimizer(model().parameters(), "muon")
    network = model()
    found = sandbox.roles(network)
    with_names = sandbox.Optimizer(network.named_parameters(), "muon", roles=found)
    assert with_names.param_groups[0]["roles"] == [role.role for role in found.values()]


def test_norms_of_several_axes_are_vectors() -> None:
    """A LayerNorm over two axes has a matrix of scales, which is no matrix."""
    norm = nn.LayerNorm((4, 3))
    network = nn.Sequential(norm, nn.Flatten(), nn.Linear(12, 2))
    optimizer = sandbox.Optimizer(network, "muon", roles={"2.weight": "head"})
    assert "curvature.v" in optimizer.state[norm.weight]


def test_refusals_of_a_recipe() -> None:
    muon = variants.get("muon")
    with pytest.raises(ValueError, match=r"unknown role 'heads'.*'head'"):
        muon.replace(roles={"heads": ADAM})
    with pytest.raises(TypeError, match=r"roles\.head must be a Recipe, 'vectors' or 'matrices', got 'adam'"):
        muon.replace(roles={"head": "adam"})
    with pytest.raises(TypeError, match="roles must be a mapping"):
        muon.replace(roles="head")
    with pytest.raises(TypeError, match=r"roles\.head must be a Recipe that has no vectors"):
        muon.replace(roles={"head": muon})
    with pytest.raises(ValueError, match=r"roles\.bias: recipe 'muon' takes no tensor of shape \(5,\)"):
        sandbox.Optimizer(model(), muon.replace(roles={"bias": muon.matrices}))
