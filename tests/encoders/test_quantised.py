"""The encoder in 8-bit integers: close to float32, independent of the rest of the batch, without overflow."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from denn.encoders import quantised
from denn.encoders.transformer import TransformerEncoder

pytestmark = [
    pytest.mark.slow,  # transformers
    pytest.mark.skipif(not quantised.is_available(), reason="this build of torch has no 8-bit products"),
]

TEXTS = ["goal match team", "", "oven butter sauce recipe chef truffle and a new very old oven", "kyoto sport!"]
KINDS = ["bert", "roberta", "mpnet"]


@pytest.fixture(params=KINDS)
def folder(request) -> Path:
    """The folder of each kind of tiny encoder that has a packed form."""
    return request.getfixturevalue("tiny_encoder" if request.param == "bert" else f"tiny_{request.param}")


def load(folder: Path) -> TransformerEncoder:
    encoder = TransformerEncoder.load(str(folder), precision="float32").eval()
    encoder.quantise(encoder.measure_ranges(encoder.tokenize(TEXTS)))
    return encoder


def test_int8_is_close_to_float32(folder):
    encoder = load(folder)
    tokens = encoder.tokenize([*TEXTS, "the orbit of the planet, the rocket and the comet"])
    exact, fast = encoder.encode(tokens), encoder.encode(tokens, in_int8=True)
    assert encoder.can_quantise
    assert fast.dtype == torch.float32
    assert not torch.equal(fast, exact)
    assert F.cosine_similarity(fast, exact).min() > 0.995


def test_embeddings_do_not_depend_on_company(folder):
    encoder = load(folder)
    together = encoder.encode(encoder.tokenize(TEXTS), in_int8=True)
    for row, text in enumerate(TEXTS):
        alone = encoder.encode(encoder.tokenize([text]), in_int8=True)[0]
        assert F.cosine_similarity(alone, together[row], dim=0) > 0.9999


def test_an_outlier_among_the_neurons_costs_no_precision(tiny_encoder):
    encoder = load(tiny_encoder)
    with torch.no_grad():
        encoder.model.encoder.layer[0].intermediate.dense.bias[3] = 300.0
    encoder.train().eval()  # weights have changed
    encoder.quantise(encoder.measure_ranges(encoder.tokenize(TEXTS)))
    tokens = encoder.tokenize(TEXTS)
    exact, fast = encoder.encode(tokens), encoder.encode(tokens, in_int8=True)
    assert F.cosine_similarity(fast, exact).min() > 0.995


def test_the_largest_products_do_not_overflow():
    weights = torch.ones(32, 64)
    made = quantised._map(weights, torch.zeros(32), 1.0, 0)
    found = quantised._multiply(torch.full((4, 64), 255, dtype=torch.uint8), made)
    torch.testing.assert_close(found, torch.full((4, 32), 255.0 * 64))


def test_new_weights_are_quantised_again(tiny_encoder):
    encoder = load(tiny_encoder)
    encoder.train().eval()
    with pytest.raises(AssertionError):
        encoder.encode(encoder.tokenize(TEXTS), in_int8=True)


def test_a_model_without_a_packed_form_cannot(tiny_distilbert):
    assert not TransformerEncoder.load(str(tiny_distilbert)).can_quantise
