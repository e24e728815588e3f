"""The roles of the packaged tasks and of well-known architectures are what their authors would say."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sandbox
import variants
from sandbox import tasks
from sandbox.recipe.find_roles import Role
from sandbox.tasks.models.resnet import ResNet


def by_role(found: dict[str, Role]) -> dict[str, set[str]]:
    """Role -> the names that have it, norms and biases apart."""
    table: dict[str, set[str]] = {}
    for name, role in found.items():
        if role.role not in ("norm", "bias"):
            table.setdefault(role.role, set()).add(name)
    return table


class Block(nn.Module):
    """A pre-norm transformer block with a fused map of queries, keys and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        x = x + self.proj(functional.scaled_dot_product_attention(q, k, v))
        return x + self.down(functional.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    """Two blocks; the head is registered first, and tied to the embedding if asked."""

    def __init__(self, tied: bool, functional_head: bool = False) -> None:
        super().__init__()
        if not functional_head:
            self.lm_head = nn.Linear(8, 11, bias=False)
        self.wte, self.blocks, self.ln = nn.Embedding(11, 8), nn.ModuleList([Block(8), Block(8)]), nn.LayerNorm(8)
        self.functional_head = functional_head
        if tied and not functional_head:
            self.lm_head.weight = self.wte.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.wte(x)
        for block in self.blocks:
            h = block(h)
        h = self.ln(h)
        return functional.linear(h, self.wte.weight) if self.functional_head else self.lm_head(h)


HIDDEN = {f"blocks.{i}.{name}.weight" for i in (0, 1) for name in ("qkv", "proj", "up", "down")}
WORDS = torch.zeros(2, 5, dtype=torch.long)


def test_gpt() -> None:
    """The head is the last layer to run, not the last to be registered."""
    assert by_role(sandbox.roles(GPT(False), WORDS)) == {
        "embedding": {"wte.weight"},
        "head": {"lm_head.weight"},
        "hidden": HIDDEN,
    }


def test_tied_weights_are_embeddings() -> None:
    """Tied by module or by F.linear: an embedding, and no layer below becomes the head in its place."""
    found = sandbox.roles(GPT(True), WORDS)
    assert by_role(found) == {"embedding": {"lm_head.weight"}, "hidden": HIDDEN}
    assert found["lm_head.weight"].tied == ("wte.weight",)
    assert by_role(sandbox.roles(GPT(True, True), WORDS)) == {"embedding": {"wte.weight"}, "hidden": HIDDEN}


def test_an_encoder_without_a_head_has_none() -> None:
    """A sum of a residual stream is reached by several layers, one through another."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    found = by_role(sandbox.roles(encoder, torch.zeros(2, 3, 8)))
    assert set(found) == {"attention_in", "attention_out", "hidden"}
    assert found["attention_in"] == {f"layers.{i}.self_attn.in_proj_weight" for i in (0, 1)}
    assert found["attention_out"] == {f"layers.{i}.self_attn.out_proj.weight" for i in (0, 1)}


def test_attention_with_keys_of_another_width() -> None:
    attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=4, add_bias_kv=True)
    found = sandbox.roles(attention)
    assert {n for n, r in found.items() if r.role == "attention_in"} == {"q_proj_weight", "k_proj_weight", "v_proj_weight"}
    assert {n for n, r in found.items() if r.role == "bias"} >= {"bias_k", "bias_v"}


def test_resnet_and_its_log_softmax() -> None:
    """The head is found past a log-softmax and a reshape."""
    model = nn.Sequential(ResNet(8, channels=1), nn.LogSoftmax(1), nn.Unflatten(1, (10, 1)))
    found = by_role(sandbox.roles(model, torch.zeros(2, 1, 28, 28)))
    assert found.pop("head") == {"0.linear.weight"}
    assert list(found) == ["conv"]
    assert found["conv"] == {name for name, p in model.named_parameters() if p.ndim == 4}


def test_depthwise_convolutions_mix_no_channels() -> None:
    """A separable convolution: its depthwise kernel is no matrix, its pointwise one is."""
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 8, 1), nn.Flatten(), nn.Linear(32, 3))
    assert by_role(sandbox.roles(model, torch.zeros(1, 4, 4, 4))) == {
        "scalar": {"0.weight"},
        "conv": {"1.weight"},
        "head": {"3.weight"},
    }


class ViT(nn.Module):
    """Patches by a convolution, a class token and positions of its own, one encoder layer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.class_token, self.pos_embedding = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 5, 8))
        self.encoder, self.fc = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).mT
        h = torch.cat([self.class_token.expand(len(h), -1, -1), h], 1) + self.pos_embedding
        return self.fc(self.encoder(h)[:, 0])


def test_vision_transformer_asks_what_a_parameter_of_its_own_is() -> None:
    """Positions and the class token belong to no known module: "other" until somebody says what they are."""
    model, batch, own = ViT(), torch.zeros(1, 3, 16, 16), {"class_token", "pos_embedding"}
    found = by_role(sandbox.roles(model, batch))
    assert found["other"] == own
    assert found["head"] == {"fc.weight"}
    assert found["conv"] == {"patches.weight"}
    said = by_role(sandbox.roles(model, batch, given={"class_token|pos_embedding": "embedding"}))
    assert "other" not in said
    assert said["embedding"] == own
    with pytest.raises(ValueError, match=r"no rule covers 'class_token', 'pos_embedding'"):
        sandbox.Optimizer(model, "muon")


class UNet(nn.Module):
    """One level: down, up by a transposed convolution, a skip connection, a last convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Conv2d(8, 2, 1)
        self.down, self.middle = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        a = functional.relu(self.down(x))
        return self.out(torch.cat([a, self.up(functional.relu(self.middle(a)))], 1))


def test_unet() -> None:
    assert by_role(sandbox.roles(UNet(), torch.zeros(1, 1, 8, 8))) == {
        "head": {"out.weight"},
        "conv": {"down.weight", "middle.weight", "up.weight"},
    }


class Mixer(nn.Module):
    """One block of MLP-Mixer: tokens, then channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.tokens = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
        self.channels = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).flatten(2).mT
        h = h + self.tokens(h.mT).mT
        return self.head((h + self.channels(h)).mean(1))


class Experts(nn.Module):
    """A mixture of two experts whose outputs are summed by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.classifier = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        mixed = sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        return self.classifier(torch.as_tensor(mixed))


class TwoHeads(nn.Module):
    """A detector: classes and boxes from one body, as a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.box, self.kind = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x).relu()
        return {"box": self.box(h), "kind": self.kind(h).log_softmax(-1)}


def test_mixer_experts_and_two_heads() -> None:
    mixer = by_role(sandbox.roles(Mixer(), torch.zeros(1, 3, 8, 8)))
    assert mixer.pop("head") == {"head.weight"}
    assert mixer.pop("conv") == {"stem.weight"}
    assert mixer == {"hidden": {f"{part}.{i}.weight" for part in ("tokens", "channels") for i in (0, 2)}}
    experts = by_role(sandbox.roles(Experts(), torch.zeros(2, 4)))
    assert experts["head"] == {"classifier.weight"}
    assert experts["hidden"] == {"gate.weight", "experts.0.weight", "experts.1.weight"}
    two = by_role(sandbox.roles(TwoHeads(), torch.zeros(2, 4)))
    assert two == {"head": {"box.weight", "kind.weight"}, "hidden": {"body.weight"}}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_and_projected() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.lstm = nn.Embedding(9, 4), nn.LSTM(4, 5, proj_size=2, batch_first=True)
            self.out = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.lstm(self.words(x))[0])

    found = by_role(sandbox.roles(Tagger(), WORDS))
    assert found == {
        "embedding": {"words.weight"},
        "recurrent": {"lstm.weight_ih_l0", "lstm.weight_hh_l0"},
        "hidden": {"lstm.weight_hr_l0"},
        "head": {"out.weight"},
    }


def test_parametrized_weights() -> None:
    """weight_norm's scale is a norm; its direction is what the weight is."""
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2))
    found = sandbox.roles(model, torch.zeros(1, 4))
    assert found["0.parametrizations.weight.original0"].role == "norm"
    assert found["0.parametrizations.weight.original1"].role == "hidden"
    assert found["2.weight"].role == "head"


# Task -> role -> its matrices, as a person reads the model's code.
TRANSFORMER = {
    "embedding": {"embedding.weight"},
    "attention_in": {f"encoder.layers.{i}.self_attn.in_proj_weight" for i in (0, 1)}
    | {f"decoder.layers.{i}.{a}.in_proj_weight" for i in (0, 1) for a in ("self_attn", "multihead_attn")},
    "attention_out": {f"encoder.layers.{i}.self_attn.out_proj.weight" for i in (0, 1)}
    | {f"decoder.layers.{i}.{a}.out_proj.weight" for i in (0, 1) for a in ("self_attn", "multihead_attn")},
    "hidden": {f"{side}.layers.{i}.linear{k}.weight" for side in ("encoder", "decoder") for i in (0, 1) for k in (1, 2)},
}
PACKAGED = {
    "softmax-digits": {"head": {"weight"}},
    "digits-mlp": {"hidden": {"0.weight"}, "head": {"2.weight"}},
    "digits-cnn": {"conv": {"1.weight", "4.weight"}, "head": {"8.weight"}},
    "lenet-fashion": {"conv": {"0.weight", "3.weight"}, "hidden": {"7.weight", "9.weight"}, "head": {"11.weight"}},
    "lstm-speeches": {
        "embedding": {"embedding.weight"},
        "recurrent": {f"lstm.weight_{way}_l{i}" for way in ("ih", "hh") for i in (0, 1)},
        "hidden": {f"softmax.tail.{i}.0.weight" for i in range(3)},
        "head": {"softmax.head.weight", *(f"softmax.tail.{i}.1.weight" for i in range(3))},
    },
    "transformer-verses": TRANSFORMER,
}


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_tasks(name: str) -> None:
    """Each task's roles; under muon no embedding and no head is made orthogonal."""
    task = tasks.get(name)
    found = task.parameter_roles()
    assert by_role(found) == PACKAGED[name]
    start, muon = task.init(0), variants.get("muon")
    for parameter, role in found.items():
        orthogonal = muon.of(start[parameter], role.role).analysis.only_matrices
        assert orthogonal == (role.role in ("hidden", "conv", "attention_in", "attention_out", "recurrent"))


def test_finding_changes_nothing() -> None:
    """Modes, buffers, requires_grad and the generator are as they were."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)).train()
    model[0].weight.requires_grad_(False)
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    found = sandbox.roles(model, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    assert found["3.weight"].role == "head"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not model[0].weight.requires_grad
    assert torch.equal(torch.random.get_rng_state(), state)


def test_without_a_batch_the_head_is_uncertain() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    found = sandbox.roles(model)
    assert found["2.weight"].role == "head"
    assert not found["2.weight"].certain
    with pytest.warns(UserWarning, match=r"2\.weight is taken to be the output layer"):
        sandbox.Optimizer(model, "muon")
    named = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 2)})
    assert sandbox.roles(named)["head.weight"].certain  # its name says the same as its place
    assert sandbox.roles(model, head="0")["0.weight"].role == "head"


def test_wrappers_keep_names() -> None:
    """The names of a compiled model are matched without their prefix."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled: Any = torch.compile(model)
    found = sandbox.roles(compiled, given=sandbox.roles(model, torch.zeros(1, 4)))
    assert {name: role.role for name, role in found.items() if role.role != "bias"} == {
        "_orig_mod.0.weight": "hidden",
        "_orig_mod.2.weight": "head",
    }


def test_refusals() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"unknown role 'heads'.*head"):
        sandbox.roles(model, given={"2.weight": "heads"})
    with pytest.raises(ValueError, match=r"no parameter's name matches 'fc'.*0\.weight"):
        sandbox.roles(model, given={"fc": "head"})
    with pytest.raises(ValueError, match="unknown output layer '1'"):
        sandbox.roles(model, head="1")
    with pytest.raises(TypeError, match=r"0\.weight.* has no shape yet"):
        sandbox.roles(nn.Sequential(nn.LazyLinear(3)))
