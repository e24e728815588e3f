"""Translation with a trained network: beam search, the average of checkpoints, BLEU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sandbox.tasks.models.transformer import BEGIN, END, PAD, Translator


@torch.no_grad()
def greedy(model: Translator, source: Tensor, longest: int) -> list[list[int]]:
    """The most probable next word again and again, until END or `longest` words; the words between BEGIN and END."""
    memory = model.encode(source)
    words = torch.full((len(source), 1), BEGIN, device=source.device)
    for _ in range(longest):
        logits = _mask_padding(model.decode(words, memory, source)[:, -1])
        words = torch.cat((words, logits.argmax(-1, keepdim=True)), dim=1)
        if (words == END).any(dim=1).all():
            break
    return [_until_end(row[1:]) for row in words.tolist()]


@torch.no_grad()
def beam_search(model: Translator, source: Tensor, beam: int, longest: int, length_power: float = 1.0) -> list[list[int]]:
    """The best of the sequences that a search of width `beam` finds, by log p(sequence)/length^length_power.

    source: (n, length).  END counts as a word.  A sentence is done when `beam` of its sequences have ended, or at `longest`
    words, where sequences that are still open count as they are.  Raises ValueError for beam < 1 or longest < 1.
    """
    for name, value in (("beam", beam), ("longest", longest)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    n = len(source)
    ended: list[list[tuple[float, list[int]]]] = [[] for _ in range(n)]
    wide = source.repeat_interleave(beam, dim=0)
    memory = model.encode(source).repeat_interleave(beam, dim=0)
    words = torch.full((n * beam, 1), BEGIN, device=source.device)
    scores = torch.full((n, beam), -torch.inf, device=source.device)
    scores[:, 0] = 0.0  # all beams begin alike: one of them is enough
    for step in range(1, longest + 1):
        log_p = _mask_padding(model.decode(words, memory, wide)[:, -1]).log_softmax(-1)
        vocabulary = log_p.shape[-1]
        total = scores[:, :, None] + log_p.unflatten(0, (n, beam))
        best, index = total.flatten(1).topk(min(2 * beam, beam * vocabulary), dim=1)  # at least `beam` of them go on
        rows = torch.arange(n, device=source.device)[:, None] * beam + index // vocabulary
        word = index % vocabulary
        for i in range(n):
            for k in range(beam):
                if word[i, k] == END and best[i, k] > -torch.inf and len(ended[i]) < beam:
                    ended[i].append((float(best[i, k]) / step**length_power, words[rows[i, k], 1:].tolist()))
        if all(len(rows) >= beam for rows in ended):
            break
        open_first = (word == END).to(torch.int8).argsort(dim=1, stable=True)[:, :beam]
        scores, rows, word = (x.gather(1, open_first) for x in (best, rows, word))
        words = torch.cat((words[rows.flatten()], word.flatten()[:, None]), dim=1)
    for i, rows in enumerate(ended):
        if len(rows) < beam:
            still = zip(scores[i].tolist(), words.unflatten(0, (n, beam))[i, :, 1:].tolist(), strict=True)
            rows += [(score / longest**length_power, row) for score, row in still if score > -torch.inf]
    return [max(rows, key=lambda pair: pair[0])[1] if rows else [] for rows in ended]


def average(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of checkpoints, entry by entry, in float64; what is no floating-point tensor is taken from the last.

    Raises ValueError for none, or where their entries differ.
    """
    if not states or any(state.keys() != states[0].keys() for state in states):
        raise ValueError("average needs at least one checkpoint, all with the same entries")
    last = states[-1]
    return {
        name: torch.stack([s[name].double() for s in states]).mean(0).to(x.dtype) if x.is_floating_point() else x.clone()
        for name, x in last.items()
    }


def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU by sacrebleu (extra `text`), 0 to 100, one reference a sentence."""
    try:
        import sacrebleu
    except ImportError as error:
        raise ImportError("BLEU needs sacrebleu: pip install 'apollo-sandbox[text]'") from error
    return float(sacrebleu.corpus_bleu(list(translations), [list(references)]).score)


def _mask_padding(logits: Tensor) -> Tensor:
    """PAD and BEGIN are never written."""
    logits = logits.clone()
    logits[..., [PAD, BEGIN]] = -torch.inf
    return logits


def _until_end(words: list[int]) -> list[int]:
    return words[: words.index(END)] if END in words else words
