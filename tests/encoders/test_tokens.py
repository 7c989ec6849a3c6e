"""Texts as tokens: which are cut out of all."""

import torch

from denn.encoders.tokens import Tokens


def test_selected_texts_are_those_rows_in_their_order():
    tokens = Tokens(torch.arange(10, dtype=torch.int32), torch.tensor([0, 3, 4, 8, 10]))
    some = tokens.select(torch.tensor([2, 0]))
    assert some.flat.tolist() == [4, 5, 6, 7, 0, 1, 2]
    assert some.offsets.tolist() == [0, 4, 7]
    assert len(tokens.select(torch.tensor([], dtype=torch.int64))) == 0
