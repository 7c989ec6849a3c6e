"""The embedding map: which documents it takes, where it puts them, and the numbers it gives."""

import json

import pytest
import torch

import denn
from denn.core.contrast import label_overlap
from denn.errors import DataError, StoreError
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Corpus, Document
from denn_bench import map as maps

pytestmark = pytest.mark.slow  # t-SNE


class Words:
    """A method whose embedding of a text is the numbers written in it."""

    def __init__(self, folder, documents, labels):
        self.store = EmbeddedStore.create(folder / "store.sqlite", 3, labels)
        self.store.add(documents, self.embed([document.text for document in documents]))

    def embed(self, texts):
        return torch.tensor([[float(number) for number in text.split()] for text in texts])


def corpus_of(train, test):
    return Corpus(train=train, test=test, name="toy")


@pytest.fixture
def toy(tmp_path):
    """Training documents that lie the nearer to {a, b} the more of it they have."""
    chance = torch.Generator().manual_seed(0)

    def text(x, y):
        noise = 0.05 * torch.randn(3, generator=chance)
        return " ".join(f"{value:.4f}" for value in (x + noise[0], y + noise[1], noise[2]))

    kinds = [(("a", "b"), 1.0, 0.0), (("a", "c"), 0.7, 0.7), (("c",), 0.0, 1.0)]
    train = [
        Document(text(x, y), labels, f"{kind}-{n}") for kind, (labels, x, y) in enumerate(kinds) for n in range(40)
    ]
    test = [Document(text(1.0, 0.0), ("b", "a"), f"t-{n}") for n in range(12)] + [Document("0 1 0", ("c",), "u")] * 5
    corpus = corpus_of(train, test)
    method = Words(tmp_path, train, corpus.labels.names)
    yield method, corpus
    method.store.close()


def test_the_most_frequent_set_is_found_and_its_numbers_are_right(toy):
    method, corpus = toy
    found = maps.embedding_map(method, corpus, train=60)
    assert found["label_set"] == ["a", "b"]
    assert (len(found["test"]["x"]), len(found["train"]["y"])) == (10, 60)
    assert found["documents"] == 120
    assert found["nearest_overlap"] == 1.0
    assert found["random_overlap"] == pytest.approx((40 * 1 + 40 * 0.5) / 120)
    assert found["spearman"] > 0.9
    assert {value: found["train"]["overlap"].count(value) for value in (1.0, 0.5, 0.0)} == {1.0: 20, 0.5: 20, 0.0: 20}


def test_alike_documents_lie_together_on_the_plane(toy):
    method, corpus = toy
    found = maps.embedding_map(method, corpus, train=120)
    places = torch.tensor([found["train"]["x"], found["train"]["y"]]).T
    centre = torch.tensor([found["test"]["x"], found["test"]["y"]]).T.mean(0)
    overlap = torch.tensor(found["train"]["overlap"])
    distance = {level: float((places[overlap == level] - centre).norm(dim=1).mean()) for level in (1.0, 0.0)}
    assert distance[1.0] < distance[0.0]


def test_the_same_seed_gives_the_same_map(toy):
    method, corpus = toy
    first, again, other = (maps.embedding_map(method, corpus, train=50, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first["train"] != other["train"]


def test_spearman_agrees_with_scipy_where_values_are_tied():
    from scipy import stats

    chance = torch.Generator().manual_seed(1)
    a, b = (torch.randint(0, 6, (50,), generator=chance).double() for _ in range(2))
    assert maps._spearman(a, b) == pytest.approx(stats.spearmanr(a.numpy(), b.numpy()).statistic)
    assert maps._spearman(a, torch.ones(50, dtype=torch.float64)) == 0


def test_label_similarity_is_that_of_the_loss(toy, monkeypatch):
    _, corpus = toy
    monkeypatch.setattr(maps, "CHUNK", 7)
    rows = corpus.labels.matrix([Document("", ("a", "b"))]), corpus.labels.matrix(corpus.train)
    assert torch.equal(maps._overlaps(frozenset({"b", "a"}), corpus.train, corpus.labels), label_overlap(*rows)[0])


def test_rare_similarities_are_all_in_the_sample():
    overlap = torch.tensor([0.0] * 500 + [1.0] * 3 + [0.5] * 40)
    rows = maps._sample(overlap, 30, torch.Generator().manual_seed(0))
    assert len(set(rows)) == 30
    assert sum(overlap[row] == 1.0 for row in rows) == 3
    assert sum(overlap[row] == 0.5 for row in rows) == pytest.approx(13.5, abs=1)
    assert maps._sample(overlap, 10_000, torch.Generator().manual_seed(0)) == list(range(543))


def test_too_few_test_documents_of_a_set_are_named(toy):
    method, corpus = toy
    with pytest.raises(DataError, match=r"The label set c has 5 test documents, expected at least 10"):
        maps.embedding_map(method, corpus, ["c"])
    with pytest.raises(DataError, match=r"The label set \(none\) has 0 test documents"):
        maps.embedding_map(method, corpus_of(corpus.train, [Document("1 0 0")]))


def test_another_corpus_than_the_models_is_refused(toy):
    method, corpus = toy
    strangers = [Document(document.text, document.labels, f"x-{document.id}") for document in corpus.train]
    with pytest.raises(DataError, match="has no training documents of this corpus"):
        maps.embedding_map(method, corpus_of(strangers, corpus.test), train=30)


def test_run_writes_a_file_that_is_no_result(tiny_model, tiny_corpus, tmp_path):
    from denn_bench.result import read_all

    many = [Document(document.text, ("sport",), f"s-{n}") for n, document in enumerate(tiny_corpus.test)]
    corpus = Corpus(train=tiny_corpus.train, test=many, labels=tiny_corpus.labels, name="tiny")
    out = tmp_path / "results" / "tiny-map.json"
    found = maps.run(tiny_model, corpus, out)
    assert json.loads(out.read_text()) == found
    assert (found["kind"], found["corpus"], found["documents"], len(found["train"]["x"])) == ("map", "tiny", 60, 60)
    assert found["machine"]["cores"] and found["created"]
    assert read_all(out.parent) == []
    assert list(out.parent.iterdir()) == [out]


def test_a_model_without_a_datastore_cannot_be_mapped(tiny_corpus, tmp_path):
    denn.train(tiny_corpus, out=tmp_path / "dummy", method="dummy").close()
    with pytest.raises(StoreError, match="has no datastore"):
        maps.run(tmp_path / "dummy", tiny_corpus, tmp_path / "map.json")
    assert not (tmp_path / "map.json").exists()
