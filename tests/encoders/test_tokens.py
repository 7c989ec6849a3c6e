"""Texts as tokens: selecting texts, and how much of a text is read."""

import pytest
import torch

from denn.encoders.tokenizer_file import load_tokenizer
from denn.encoders.tokens import Tokens, tokenize


def test_selected_texts_are_those_rows_in_their_order():
    tokens = Tokens(torch.arange(10, dtype=torch.int32), torch.tensor([0, 3, 4, 8, 10]))
    some = tokens.select(torch.tensor([2, 0]))
    assert some.flat.tolist() == [4, 5, 6, 7, 0, 1, 2]
    assert some.offsets.tolist() == [0, 4, 7]
    assert len(tokens.select(torch.tensor([], dtype=torch.int64))) == 0


@pytest.mark.parametrize(
    "text", ["word " * 1200, "internationalisation " * 300, "x" * 5000, "a\tb\n" * 900, " " * 5000 + "end"]
)
def test_the_beginning_of_a_long_text_gives_the_tokens_of_the_whole(tiny_encoder, text):
    tokenizer = load_tokenizer(tiny_encoder)
    texts = [text, "goal", text[:-7], ""]
    found = tokenize(tokenizer, texts, 64, 10**6)
    encodings = tokenizer.encode_batch(texts)
    assert found.flat.tolist() == [id for encoding in encodings for id in encoding.ids]
    assert found.truncated == sum(bool(encoding.overflowing) for encoding in encodings)
