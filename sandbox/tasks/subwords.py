"""Byte-pair encoding of texts whose words are separated by spaces (extra `text`)."""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.tasks.models.transformer import BEGIN, END, PAD, UNKNOWN

_SPECIAL = {PAD: "<pad>", BEGIN: "<s>", END: "</s>", UNKNOWN: "<unk>"}


class Subwords:
    """Words as pieces, learnt by merging the most frequent pairs; every word of a text ends in a piece that says so.

    texts: to learn from.  size: of the vocabulary, with the four special words.
    """

    def __init__(self, texts: Sequence[str], size: int) -> None:
        try:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        except ImportError as error:
            raise ImportError("byte-pair encoding needs tokenizers: pip install 'apollo-sandbox[text]'") from error
        self._tokenizer = Tokenizer(models.BPE(unk_token=_SPECIAL[UNKNOWN], end_of_word_suffix="</w>"))
        self._tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self._tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[_SPECIAL[i] for i in range(len(_SPECIAL))],
            end_of_word_suffix="</w>",
            show_progress=False,
        )
        self._tokenizer.train_from_iterator(texts, trainer)

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's pieces, then END."""
        return [[*encoded.ids, END] for encoded in self._tokenizer.encode_batch(list(texts))]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts again, without the special words."""
        return list(self._tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=True))
