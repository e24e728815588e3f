"""Language and translation tasks: batches, carried state, what is learnt."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch

from sandbox import tasks
from sandbox.datasets import text
from sandbox.tasks import language, translation
from sandbox.tasks.models.transformer import BEGIN, END, PAD


def small_lstm(**options):
    sizes = {"vocabulary": 500, "embedding": 32, "hidden": 32, "cutoffs": (150, 400), "sequences": 16, "window": 10}
    return tasks.get("lstm-speeches", **{**sizes, "tokens": 20_000, "evaluated": 4_000, "steps": 20, **options})


def small_transformer(**options):
    sizes = {"vocabulary": 500, "width": 32, "heads": 2, "feedforward": 64, "layers": 1, "tokens": 256, "longest": 16}
    return tasks.get("transformer-verses", **{**sizes, "pairs": 400, "steps": 20, **options})


# -- language ----------------------------------------------------------------------------------------------------------


def test_windows_go_on_where_the_last_ones_ended():
    words = torch.arange(23)
    found = list(language.windows(words, sequences=2, steps=3))
    assert [x.tolist() for x, _ in found] == [[[0, 1, 2], [11, 12, 13]], [[3, 4, 5], [14, 15, 16]], [[6, 7, 8], [17, 18, 19]]]
    assert all(torch.equal(y, x + 1) for x, y in found)
    with pytest.raises(ValueError, match="5 words are too few for 2 sequences of 3"):
        list(language.windows(words[:5], 2, 3))


def test_training_text_is_the_speeches_and_differs_between_seeds_in_where_it_begins():
    task = small_lstm()
    x, y = next(task.batches(0))
    assert x.shape == y.shape == (16, 10)
    (whole,) = task.words("train")
    assert len(whole) == 20_000
    starts = set()
    for seed in range(8):
        row = next(task.batches(seed))[0][0]
        (start,) = (k for k in range(10) if torch.equal(whole[k : k + 10], row))
        starts.add(start)
    assert len(starts) > 2


def test_words_are_numbered_by_their_frequency_in_the_training_text():
    (whole,) = small_lstm(tokens=None).words("train")
    counts = np.bincount(whole.numpy(), minlength=500)[1:]
    assert (np.diff(counts) <= 0).all()
    assert counts[0] > 0
    rarer = [w for speech in tasks.language.datasets.speeches()["test"] for w in text.words(speech)]
    (test,) = small_lstm(evaluated=None).words("test")
    assert len(test) == len(rarer)


def test_state_is_carried_within_an_epoch_and_begins_at_zero():
    task, model = small_lstm(tokens=16 * 35), small_lstm().start(0)
    states = []
    for batch in itertools.islice(task.stream(0, model), 6):  # three windows an epoch
        states.append(model.h.shape[1] and float(model.h.abs().sum()))
        task.loss(model, batch)
    assert states[0] == states[3] == 0
    assert min(states[1], states[2], states[4]) > 0


def test_the_length_of_windows_changes_no_evaluation():
    long, short = small_lstm(), small_lstm()
    short.stretch = 1
    model = long.start(0).double()
    (found,), (expected,) = (t.evaluate(model, "validation")[:1] for t in (long, short))
    # the short windows end a little later: 240 of 4,000 words are read by one alone
    assert found == pytest.approx(expected, rel=1e-3)


def test_an_evaluation_leaves_the_state_of_training_alone():
    task = small_lstm()
    model, batches = task.start(0), task.batches(0)
    task.loss(model, next(batches))
    before = model.h.clone()
    task.evaluate(model, "validation")
    assert torch.equal(model.h, before)
    assert model.training


@pytest.mark.parametrize("make", [small_lstm, small_transformer])
def test_adam_learns(make):
    task = make()
    model = task.start(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = task.evaluate(model, "validation")
    for batch in itertools.islice(task.stream(0, model), 40):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    after = task.evaluate(model, "validation")
    assert before[0] == pytest.approx(np.log(500), abs=0.6)
    assert after[0] < before[0] - 0.7


def test_one_billion_words_are_read_shard_by_shard(tmp_path):
    (tmp_path / "1bw" / "train").mkdir(parents=True)
    (tmp_path / "1bw" / "test").mkdir()
    (tmp_path / "1bw" / "train" / "a").write_text("w1 w2 nothing\n" * 10)
    (tmp_path / "1bw" / "test" / "a").write_text("w5\n" * 10)
    names = ["<S>", "<UNK>", *(f"w{i}" for i in range(793_469))]
    (tmp_path / "1bw" / "1b_word_vocab.txt").write_text("\n".join(names))
    task = tasks.get("lstm-1bw", folder=tmp_path, sequences=2, window=4)
    (words,) = task.words("train")
    assert words.tolist() == [0, 3, 4, 1] * 10
    assert torch.cat(list(task.words("test"))).tolist() == [0, 7] * 10
    x, y = next(task.batches(0))
    assert x.shape == (2, 4)
    assert len(pickle.dumps(task)) < 10_000


def test_the_papers_length():
    assert tasks.get("lstm-1bw").steps == 20 * 312_500
    assert tasks.get("transformer-wmt14").steps == 500_000


# -- translation -------------------------------------------------------------------------------------------------------


def test_groups_hold_the_padded_tokens_asked_for():
    lengths = [3, 9, 4, 2, 2, 20]
    found = translation.groups_of(lengths, sorted(range(6), key=lengths.__getitem__), 12)
    assert sorted(i for group in found for i in group) == list(range(6))
    assert all(max(lengths[i] for i in g) * len(g) <= 12 or len(g) == 1 for g in found)
    assert found == [[3, 4, 0], [2], [1], [5]]


def test_a_batch_is_shifted_and_padded():
    source, begun, y = translation.batch_of([np.array([7, END])], [np.array([5, 6, END])])
    assert (source.tolist(), begun.tolist(), y.tolist()) == ([[7, END]], [[BEGIN, 5, 6]], [[5, 6, END]])
    rows = [np.array([5, END]), np.array([5, 6, 7, END])]
    _, begun, y = translation.batch_of(rows, rows)
    assert begun.tolist() == [[BEGIN, 5, PAD, PAD], [BEGIN, 5, 6, 7]]
    assert y.tolist() == [[5, END, PAD, PAD], [5, 6, 7, END]]


def test_an_epoch_holds_every_pair_once_within_the_tokens():
    task = small_transformer(pairs=200)
    batches = list(task.training_batches(0))
    assert sum(len(y) for *_, y in batches) == 200
    assert all(y.numel() <= 256 for *_, y in batches)
    assert task.rows(batches[0]) == int((batches[0][2] != PAD).sum())


def test_an_evaluation_does_not_depend_on_how_it_is_batched():
    one, other = small_transformer(tokens=64), small_transformer(tokens=1000)
    model = one.start(0).double()
    assert one.evaluate(model, "test") == pytest.approx(other.evaluate(model, "test"), rel=1e-10)


def test_smoothing_is_in_the_loss_and_not_in_the_metric():
    task = small_transformer(smoothing=0.0)
    loss, nll = task.evaluate(task.start(0), "test")
    assert loss == nll
    smoothed, other = small_transformer(smoothing=0.3).evaluate(task.start(0), "test")
    assert (other, smoothed) == (nll, pytest.approx(smoothed))
    assert smoothed != nll
    with pytest.raises(ValueError, match=r"smoothing must lie in \[0, 1\), got 1"):
        small_transformer(smoothing=1)


def test_translations_and_their_bleu():
    task = small_transformer()
    model = task.start(0)
    found = task.translate(model, "test", beam=2, longest=5, most=3)
    assert len(found) == 3
    assert 0 <= task.bleu(model, "test", beam=2, longest=5, most=3) < 50
    assert model.training


def test_bleu_is_against_the_references(monkeypatch):
    task = small_transformer()
    splits, text_of = task._load()
    rows = [row[:-1].tolist() for row in splits["test"][1][:5]]
    monkeypatch.setattr(translation.decoding, "beam_search", lambda *_: rows)
    assert task.bleu(task.start(0), "test", most=5) == pytest.approx(100)


def test_wmt14_takes_the_pieces_of_a_folder(tmp_path, monkeypatch):
    found = translation.datasets.Pairs(["a@@ b c", "c"], ["x y@@ c", "x"])
    monkeypatch.setattr(translation.datasets, "wmt14", lambda folder: dict.fromkeys(("train", "validation", "test"), found))
    translation._wmt14.cache_clear()
    splits, text_of = translation._wmt14(str(tmp_path), 8)
    assert [row.tolist() for row in splits["train"][0]] == [[6, 7, 4, END], [4, END]]
    assert text_of([[6, 7, 4]]) == ["ab c"]
    assert splits["train"][1][0].tolist() == [5, 3, 4, END]  # y@@ is beyond the vocabulary
    translation._wmt14.cache_clear()
