"""Beam search against all sequences there are, checkpoint averages, BLEU, byte-pair encoding."""

from __future__ import annotations

import itertools

import pytest
import torch

from sandbox.tasks import decoding, models
from sandbox.tasks.models.transformer import BEGIN, END
from sandbox.tasks.subwords import Subwords


def translator(vocabulary=7, seed=0, sharpness=3.0):
    torch.manual_seed(seed)
    model = models.Translator(vocabulary, 16, 2, 32, 1, dropout=0.0).double().eval()
    with torch.no_grad():
        for p in model.parameters():  # so that words differ in probability, and END is likely now and then
            p.add_(torch.randn_like(p), alpha=sharpness / 10)
        model.embedding.weight.mul_(sharpness)
    return model


def sources(n=4, vocabulary=7):
    return torch.randint(3, vocabulary, (n, 5), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("seed", range(3))
def test_a_beam_of_one_is_the_greedy_search(seed):
    model, source = translator(seed=seed), sources(8)
    assert decoding.beam_search(model, source, beam=1, longest=9) == decoding.greedy(model, source, longest=9)


def log_p(model, source, sequences):
    """log p of sequences of one length, PAD and BEGIN left out, by one pass."""
    words = torch.tensor(sequences)
    begun = torch.cat([torch.full_like(words[:, :1], BEGIN), words[:, :-1]], 1)
    logits = model(source.expand(len(words), -1), begun).detach().clone()
    logits[..., :2] = -torch.inf
    return logits.log_softmax(-1).gather(-1, words[..., None]).sum((1, 2)).tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("length_power", [0.0, 1.0])
def test_a_beam_as_wide_as_the_tree_finds_the_best_of_all_sequences(length_power, seed):
    vocabulary, longest = 6, 3
    model, source = translator(vocabulary, seed), sources(12, vocabulary)
    others = range(3, vocabulary)
    candidates = [[*head, END] for n in range(longest) for head in itertools.product(others, repeat=n)]
    candidates += [list(words) for words in itertools.product(others, repeat=longest)]
    lengths = [list(same) for _, same in itertools.groupby(sorted(candidates, key=len), len)]
    found = decoding.beam_search(model, source, beam=len(others) ** longest * 2, longest=longest, length_power=length_power)
    for row, words in zip(source, found, strict=True):
        scored = [(c, p) for same in lengths for c, p in zip(same, log_p(model, row, same), strict=True)]
        best, _ = max(scored, key=lambda pair: pair[1] / len(pair[0]) ** length_power)
        assert words == [w for w in best if w != END]


def test_sentences_do_not_disturb_one_another():
    model, source = translator(), sources(6)
    together = decoding.beam_search(model, source, beam=3, longest=6)
    assert together == [decoding.beam_search(model, row[None], beam=3, longest=6)[0] for row in source]


def test_a_beam_must_be_possible():
    with pytest.raises(ValueError, match="beam must be at least 1, got 0"):
        decoding.beam_search(translator(), sources(), beam=0, longest=3)
    with pytest.raises(ValueError, match="longest must be at least 1, got 0"):
        decoding.beam_search(translator(), sources(), beam=1, longest=0)


def test_the_average_of_checkpoints():
    states = [{"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(1)}, {"w": torch.tensor([2.0, 5.0]), "n": torch.tensor(2)}]
    found = decoding.average(states)
    assert found["w"].tolist() == [1.5, 3.5]
    assert found["w"].dtype == torch.float32
    assert found["n"].item() == 2
    for wrong in ([], [states[0], {"w": states[0]["w"]}]):
        with pytest.raises(ValueError, match="at least one checkpoint, all with the same entries"):
            decoding.average(wrong)


def test_bleu_is_a_hundred_for_the_same_and_worked_out_by_hand_for_another():
    same = ["the cat sat on the mat today"]
    assert decoding.bleu(same, same) == pytest.approx(100)
    # n-gram precisions 5/6, 4/5, 3/4, 2/3 (the last word is wrong), no brevity penalty: 100 (1/3)^(1/4)
    assert decoding.bleu(["a b c d e x"], ["a b c d e f"]) == pytest.approx(100 * (1 / 3) ** 0.25)


def test_pieces_go_back_to_texts():
    texts = ["low lower lowest", "new newer newest wide"] * 3
    pieces = Subwords(texts, 40)
    rows = pieces.encode(texts)
    assert pieces.decode(rows) == texts
    assert all(row[-1] == END and max(row) < len(pieces) <= 40 for row in rows)
    assert pieces.encode(["low"])[0] == [*rows[0][:1], END]  # a frequent word is one piece
    assert Subwords(texts, 40).encode(texts) == rows
    assert pieces.encode(["zz low"])[0][0] == 3  # what was never seen is unknown
