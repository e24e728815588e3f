"""Networks: sizes as published, and properties that do not depend on how they are written."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from sandbox.tasks import models
from sandbox.tasks.models.transformer import PAD, positions, translation_loss


def size(module: nn.Module) -> tuple[int, int]:
    return sum(p.numel() for p in module.parameters()), len(list(module.parameters()))


@pytest.mark.parametrize(
    ("make", "parameters", "tensors"),
    [
        (lambda: models.LeNet(1, 28), 44_426, 10),
        (lambda: models.LeNet(3, 32), 62_006, 10),
        (lambda: models.ResNet(8, 1, (8, 16, 32)), 19_810, 29),
        (lambda: models.ResNet(20, 1), 272_186, 65),
        (lambda: models.ResNet(110), 1_730_714, 335),
        (models.ResNeXt50, 25_028_904, 161),
        (lambda: models.LanguageModel(8_000, 64, 128, [600, 1_000, 6_450]), 885_484, 16),
        (lambda: models.Translator(2_000, 64, 4, 256, 2), 361_472, 61),
        (lambda: models.Translator(37_000, 512, 8, 2_048, 6), 44_138_496 + 37_000 * 512, 181),
    ],
)
def test_sizes_are_the_published_ones(make, parameters, tensors):
    with torch.device("meta"):
        assert size(make()) == (parameters, tensors)


def test_the_parts_of_the_papers_language_model():
    with torch.device("meta"):
        model = models.LanguageModel(793_471, 300, 2_048, [60_000, 100_000, 640_000])
    millions = [round(size(part)[0] / 1e6, 1) for part in (model.embedding, model.lstm, model.softmax.head, model.softmax.tail)]
    assert millions == [238.0, 52.8, 122.9, 95.9]


def multiply_adds(model: nn.Module, x: torch.Tensor) -> int:
    found = []

    def count(module, inputs, output):
        found.append(output[0].numel() * module.weight[0].numel() if isinstance(module, nn.Conv2d) else module.weight.numel())

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    model.eval()(x)
    return sum(found)


@pytest.mark.parametrize(
    ("make", "shape", "expected"),
    [
        (lambda: models.LeNet(1, 28), (1, 28, 28), 281_640),
        (lambda: models.LeNet(3, 32), (3, 32, 32), 651_720),
        (lambda: models.ResNet(8, 1, (8, 16, 32)), (1, 14, 14), 645_216),
        (lambda: models.ResNet(20, 1), (1, 28, 28), 31.0e6),
        (lambda: models.ResNet(110), (3, 32, 32), 253.1e6),
        (models.ResNeXt50, (3, 224, 224), 4.2e9),
    ],
)
def test_multiply_adds_an_image_are_the_published_ones(make, shape, expected):
    with torch.device("meta"):
        found = multiply_adds(make(), torch.zeros(1, *shape))
    assert found == pytest.approx(expected, rel=1e-2 if expected >= 4e9 else 2e-3 if isinstance(expected, float) else 0)


def test_impossible_sizes():
    with pytest.raises(ValueError, match="depth must be 6n"):
        models.ResNet(18)
    with pytest.raises(ValueError, match="widths must be three"):
        models.ResNet(20, widths=(16, 32))
    with pytest.raises(ValueError, match="side must be at least 16"):
        models.LeNet(1, 12)
    with pytest.raises(ValueError, match="width must be even"):
        models.Translator(10, 6, 4, 8, 1)
    with pytest.raises(ValueError, match="2 cutoffs need a softmax of width 16 or more, got 8"):
        models.LanguageModel(20, 16, 8, [5, 9])


def test_channels_last_changes_no_number():
    torch.manual_seed(0)
    model, x = models.ResNet(8, 1, (8, 16, 32)).double(), torch.randn(4, 1, 14, 14, dtype=torch.float64)
    plain = model(x)
    last = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, plain, rtol=1e-10, atol=1e-12)  # sums in another order, float64


# -- the language model ------------------------------------------------------------------------------------------------


def language_model(cutoffs=(5, 9), vocabulary=20, dropout=0.0, hidden=16, **options):
    torch.manual_seed(0)
    return models.LanguageModel(vocabulary, 16, hidden, cutoffs, dropout=dropout, **options).double()


def text(n=3, steps=7, vocabulary=20):
    return torch.randint(vocabulary, (n, steps + 1), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tied", [False, True])
def test_the_loss_is_that_of_the_full_distribution(tied):
    model, words = language_model(tied=tied, hidden=24 if tied else 16), text()
    x, y = words[:, :-1], words[:, 1:]
    loss = model(x, y)
    model.reset()
    log_p = model.log_probabilities(x)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(3, 7, dtype=torch.float64))
    torch.testing.assert_close(loss, functional.nll_loss(log_p.flatten(0, 1), y.flatten()))


def test_an_adaptive_softmax_whose_clusters_hold_one_word_is_a_full_softmax():
    # With the only cut-off before the last word, the last word's cluster has that word alone, with probability 1 in it: p is
    # the softmax of the head, one row for each word.
    model, words = language_model(cutoffs=[19]), text()
    x, y = words[:, :-1], words[:, 1:]
    loss = model(x, y)
    model.reset()
    expected = functional.cross_entropy(model.softmax.head(model.read(x).flatten(0, 1)), y.flatten())
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert model.softmax.tail[0][1].weight.grad.abs().max() < 1e-15  # log 1 = 0 whatever the weights


def test_the_adaptive_softmax_is_the_product_of_cluster_and_word():
    # log p(word) = log p(cluster) + log p(word | cluster), written out
    model, words = language_model(), text()
    x = words[:, :-1]
    out = model.read(x).flatten(0, 1)
    head = (out @ model.softmax.head.weight.T).log_softmax(-1)
    parts = [head[:, :5]]
    for i, (project, weight) in enumerate(model.softmax.tail):
        parts.append(head[:, 5 + i, None] + (out @ project.weight.T @ weight.weight.T).log_softmax(-1))
    model.reset()
    torch.testing.assert_close(model.log_probabilities(x).flatten(0, 1), torch.cat(parts, 1))


def test_state_is_carried_without_its_history():
    model, words = language_model(), text(steps=8)
    x, y = words[:, :-1], words[:, 1:]
    whole = model.log_probabilities(x)
    model.reset()
    halves = [model.log_probabilities(part) for part in x.split(4, dim=1)]
    torch.testing.assert_close(torch.cat(halves, 1), whole)
    assert not model.h.requires_grad
    model.reset()
    torch.testing.assert_close(model.log_probabilities(x), whole)  # from zero again
    model.reset()
    model(x[:, :4], y[:, :4])
    model(x[:, 4:], y[:, 4:]).backward()  # the first half's graph is not needed
    with pytest.raises(ValueError, match=r"the state is that of 3 sequences, got 2; reset\(\) begins anew"):
        model(x[:2], y[:2])


def test_state_is_no_part_of_a_checkpoint():
    model, words = language_model(), text()
    model(words[:, :-1], words[:, 1:])
    assert not {"h", "c"} & set(model.state_dict())


def test_tied_embeddings_are_rows_of_the_softmax():
    model = language_model(tied=True)
    found = model.embed(torch.arange(20)[None])[0]
    torch.testing.assert_close(found[:5], model.softmax.head.weight[:5])
    for (low, high), (project, weight) in zip([(5, 9), (9, 20)], model.softmax.tail, strict=True):
        torch.testing.assert_close(found[low:high], weight.weight @ project.weight)
    assert size(model)[0] == size(language_model())[0] - 20 * 16


def test_gradients_of_tied_embeddings_are_those_of_finite_differences():
    model, words = language_model(tied=True), text(n=2, steps=3)

    def loss(weight):
        model.reset()
        return torch.func.functional_call(model, {"softmax.tail.0.1.weight": weight}, (words[:, :-1], words[:, 1:]))

    assert torch.autograd.gradcheck(loss, model.softmax.tail[0][1].weight.detach().clone().requires_grad_())


# -- the translator ----------------------------------------------------------------------------------------------------


def translator(dropout=0.0, vocabulary=30):
    torch.manual_seed(0)
    return models.Translator(vocabulary, 16, 4, 32, 2, dropout=dropout).double()


def sentences(n=3):
    draw = torch.Generator().manual_seed(2)
    return (torch.randint(4, 30, (n, length), generator=draw) for length in (6, 5))


@pytest.mark.parametrize("training", [True, False])
def test_padding_changes_nothing(training):
    model = translator().train(training)
    source, target = sentences()
    expected = model(source, target)
    wide = functional.pad(source, (0, 4), value=PAD), functional.pad(target, (0, 3), value=PAD)
    torch.testing.assert_close(model(*wide)[:, :5], expected, rtol=1e-10, atol=1e-12)


def test_padding_changes_no_loss_and_no_gradient():
    model, (source, target) = translator(), sentences()
    y = target.roll(-1, 1)
    wide = [functional.pad(x, (0, 4), value=PAD) for x in (source, target, y)]
    losses = [translation_loss(model(s, t), w, 0.1) for s, t, w in ((source, target, y), wide)]
    torch.testing.assert_close(*losses)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    for plain, padded in zip(*gradients, strict=True):
        torch.testing.assert_close(padded, plain, rtol=1e-9, atol=1e-12)


def test_label_smoothing_is_the_mixture_with_the_uniform_distribution():
    logits, y = torch.randn(2, 3, 7, dtype=torch.float64), torch.tensor([[4, 5, PAD], [6, PAD, PAD]])
    log_p = logits.log_softmax(-1)
    terms = [0.9 * -log_p[i, t, y[i, t]] + 0.1 * -log_p[i, t].mean() for i, t in ((0, 0), (0, 1), (1, 0))]
    torch.testing.assert_close(translation_loss(logits, y, 0.1), sum(terms) / 3)


def test_no_word_sees_what_comes_after_it():
    model, (source, target) = translator().eval(), sentences()
    changed = target.clone()
    changed[:, 3] = 4 + (changed[:, 3] - 3) % 26
    torch.testing.assert_close(model(source, changed)[:, :3], model(source, target)[:, :3])
    assert not torch.allclose(model(source, changed)[:, 3], model(source, target)[:, 3])


def test_positions_are_sines_and_cosines():
    found = positions(5, 6)
    for t in range(5):
        for i in range(3):
            angle = t / 10_000 ** (2 * i / 6)
            assert found[t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)  # float32
            assert found[t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    with pytest.raises(ValueError, match="at most 8 words, got 9"):
        models.Translator(10, 4, 2, 8, 1, longest=8)(torch.ones(1, 9, dtype=torch.long), torch.ones(1, 1, dtype=torch.long))
