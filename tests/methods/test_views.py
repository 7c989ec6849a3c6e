"""The second views: what changes, how often, and the source of randomness."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from denn.encoders.layout import Layout
from denn.errors import ConfigError
from denn.methods.contrastive import VIEWS
from denn.methods.views import mask_token

CLS, SEP, MASK = 1, 2, 3
CPU = torch.device("cpu")
every_view = pytest.mark.parametrize("view", VIEWS)


def batch(lengths):
    """Pack two views each of documents of these lengths, every other token with an id of its own."""
    layout = Layout.of([length for length in lengths for _ in range(2)], CPU)
    ids = torch.arange(10, 10 + len(layout.document))
    ends = layout.document.diff(append=torch.tensor([-1])) != 0
    ids = ids.masked_fill(layout.positions == 0, CLS).masked_fill(ends, SEP)
    return ids, layout, layout.document % 2 == 1


def documents(ids, layout):
    """Cut packed ids into the lists of first views and of second views."""
    each = [part.tolist() for part in ids.split(list(layout.lengths))]
    return each[0::2], each[1::2]


def view_of(view, lengths, seed=0):
    """Return first views, second views as they were, and second views as they became."""
    ids, layout, second = batch(lengths)
    torch.manual_seed(seed)
    found = VIEWS[view](ids, layout, second, MASK)
    assert found.shape == ids.shape
    assert found.dtype == ids.dtype
    first, before = documents(ids, layout)
    kept, after = documents(found, layout)
    assert kept == first, "first views stay as they are"
    return first, before, after


lengths_and_seed = given(st.lists(st.integers(2, 60), min_size=1, max_size=8), st.integers(0, 1000))


@every_view
@lengths_and_seed
def test_first_and_last_tokens_stay(view, lengths, seed):
    _, _, after = view_of(view, lengths, seed)
    assert all(document[0] == CLS and document[-1] == SEP for document in after)
    assert all(CLS not in document[1:] and SEP not in document[:-1] for document in after)


def test_dropout_leaves_the_ids():
    _, before, after = view_of("dropout", [2, 3, 17])
    assert after == before


@pytest.mark.parametrize("view", ["masking", "span"])
@lengths_and_seed
def test_masks_change_nothing_else(view, lengths, seed):
    _, before, after = view_of(view, lengths, seed)
    for old, new in zip(before, after, strict=True):
        assert all(b in (a, MASK) for a, b in zip(old, new, strict=True))


def test_random_masking_takes_fifteen_per_cent_wherever_they_are():
    _, _, after = view_of("masking", [102] * 1000)
    masked = torch.tensor(after) == MASK
    assert float(masked[:, 1:-1].float().mean()) == pytest.approx(0.15, abs=0.005)
    by_place = masked[:, 1:-1].float().mean(0)
    assert 0.09 < float(by_place.min()) < float(by_place.max()) < 0.21
    runs = (masked[:, 1:] & masked[:, :-1]).sum() / masked.sum()
    assert float(runs) == pytest.approx(0.15, abs=0.01), "neighbouring tokens are masked independently"


@lengths_and_seed
def test_a_span_is_one_run_of_fifteen_per_cent(lengths, seed):
    for document in view_of("span", lengths, seed)[2]:
        places = [place for place, token in enumerate(document) if token == MASK]
        inner = len(document) - 2
        assert len(places) == (max(1, round(0.15 * inner)) if inner else 0)
        assert places == list(range(places[0], places[-1] + 1)) if places else not inner


def test_a_span_begins_anywhere_and_nowhere_more_often():
    _, _, after = view_of("span", [22] * 9000)  # 20 tokens, 3 of them masked: 18 places
    starts = (torch.tensor(after) == MASK).int().argmax(1)
    counts = starts.bincount(minlength=22).tolist()
    assert counts[0] == 0
    assert counts[19:] == [0, 0, 0]
    assert all(400 < count < 600 for count in counts[1:19])


@lengths_and_seed
def test_a_shuffle_permutes_the_tokens_of_each_document(lengths, seed):
    _, before, after = view_of("shuffle", lengths, seed)
    assert [sorted(document) for document in after] == [sorted(document) for document in before]


def test_every_permutation_is_as_likely():
    _, before, after = view_of("shuffle", [5] * 6000)
    orders = [tuple(token - old[1] for token in new[1:-1]) for old, new in zip(before, after, strict=True)]
    counts = {order: orders.count(order) for order in set(orders)}
    assert len(counts) == 6
    assert all(850 < count < 1150 for count in counts.values())


@pytest.mark.parametrize("view", ["masking", "span", "shuffle"])
def test_the_seed_decides(view):
    lengths = [40, 41, 50]
    first, again, other = (view_of(view, lengths, seed)[2] for seed in (5, 5, 6))
    assert first == again != other


def tokenizer_of(*tokens):
    return Tokenizer(WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=tokens[0]))


def test_the_mask_token_of_each_family():
    assert mask_token(tokenizer_of("[UNK]", "a", "[MASK]"), "masking") == 2
    assert mask_token(tokenizer_of("<unk>", "<mask>"), "span") == 1
    both = tokenizer_of("<unk>", "[MASK]", "a", "<mask>")  # as in MPNet's vocabulary
    assert mask_token(both, "masking") == 3


def test_a_tokenizer_without_a_mask_token():
    for view in ("dropout", "shuffle"):
        mask_token(tokenizer_of("[UNK]"), view)
    for view in ("masking", "span"):
        with pytest.raises(ConfigError, match=f"Got view={view}, but the encoder's tokenizer has no mask token"):
            mask_token(tokenizer_of("[UNK]"), view)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_view
def test_a_view_never_waits_for_the_device(view):
    ids, layout, second = batch([5, 9, 30])
    device = torch.device("cuda")
    moved = Layout.of(layout.lengths, device)
    ids, second = ids.to(device), second.to(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = VIEWS[view](ids, moved, second, MASK)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.device.type == "cuda"
