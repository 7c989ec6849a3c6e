"""The page: complete, accessible, self-contained, and safe from user content."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

import denn
from denn.core.metrics import label_table
from denn.errors import ConfigError
from denn.progress import Silent
from denn.report.gather import gather
from denn.report.page import render, write
from denn.report.sections import labels
from denn.types import Document

pytestmark = pytest.mark.slow  # whole pages

EVIL = '<script>alert("x")</script>'
OPTIONAL_END = {"li", "tr", "td", "th"}
VOID = {"meta", "input", "path", "rect"}


class Page(HTMLParser):
    """Collect elements with their attributes, and texts; raise for mismatched tags."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.texts, self.open = [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        while self.open[-1] != tag and self.open[-1] in OPTIONAL_END:
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def headings(self):
        return [text for tag, text in self.texts if tag == "h2"]


@pytest.fixture(scope="module")
def tiny_findings(tiny_model, tiny_corpus):
    with denn.load(tiny_model) as model:
        return gather(model, tiny_corpus.test, tiny_corpus.valid, Silent()), model.card


@pytest.fixture(scope="module")
def lambda_findings(tmp_path_factory, tiny_corpus, tiny_settings):
    folder = tmp_path_factory.mktemp("models") / "by-lambda"
    with denn.train(tiny_corpus, out=folder, combination="confidence", **tiny_settings) as model:
        return gather(model, tiny_corpus.test, tiny_corpus.valid, Silent()), model.card


@pytest.fixture(scope="module")
def html(tiny_findings):
    return render(*tiny_findings, "tiny.jsonl")


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_all_sections_stand_in_order_and_are_linked(page):
    headings = ["Scores", "Witnesses and combination", "Thresholds", "Calibration", "Frequent and rare labels"]
    headings += ["Labels", "Confused labels", "Other values of k", "Datastore size", "Map"]
    assert page.headings() == [*headings, "Worst errors"]
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert {attributes["href"].removeprefix("#") for attributes in page.all("a")} <= ids


def test_the_page_needs_nothing_else(page, html):
    assert not any(attributes.keys() & {"src", "srcset", "xlink:href"} for _, attributes in page.elements)
    assert not page.all("link") and "@import" not in html and "url(" not in html
    assert "http" not in html


def test_charts_and_tables_can_be_read_aloud(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    charts = [attributes for attributes in page.all("svg") if attributes.get("class") == "chart"]
    assert len(charts) == 10
    for attributes in charts:
        assert attributes["role"] == "img"
        assert set(attributes["aria-labelledby"].split()) <= set(ids)
    assert len(page.all("caption")) == len(page.all("table"))
    assert all("scope" in attributes for attributes in page.all("th"))
    assert page.all("html") == [{"lang": "en"}]


def test_lambda_and_gamma_have_sections_where_they_decide(lambda_findings):
    page = Page(render(*lambda_findings, "t"))
    assert [name for name in page.headings() if name in ("Confidence", "Other values of k and γ")] == [
        "Confidence",
        "Other values of k and γ",
    ]
    assert sum(attributes.get("class") == "chart" for attributes in page.all("svg")) == 13
    assert any("Combination: λ (confidence). It was set, not learnt." in text for _, text in page.texts)
    assert any(tag == "p" and "· λ" in text for tag, text in page.texts)


def test_the_comparison_of_combinations_is_shown_best_first(tiny_findings):
    found, card = tiny_findings
    facts = {
        "chosen": "learnt",
        "why": "On <b>unseen</b> documents it is better.",
        "optimise": "macro_f1",
        "scores": {"average": 0.61, "confidence": 0.6, "neighbours": 0.55, "learnt": 0.625},
        "calibration_error": {"average": 0.0525, "learnt": 0.0114},
    }
    card = card.model_copy(update={"training": {**card.training, "combination": facts}})
    html = render(found, card, "t")
    assert "Combination: learnt. On &lt;b&gt;unseen&lt;/b&gt; documents it is better." in html
    rows = [
        ("learnt", "yes", "62.5", "1.14"),
        ("average", "", "61.0", "5.25"),
        ("λ (confidence)", "", "60.0", ""),
        ("neighbours alone", "", "55.0", ""),
    ]
    written = (
        f'<tr><th scope="row">{name}<td class="word">{used}<td>{score}<td>{error}' for name, used, score, error in rows
    )
    assert "".join(written) in html
    assert "macro-F1, %" in html
    facts = dict(zip(*([text for tag, text in Page(html).texts if tag == kind] for kind in ("dt", "dd")), strict=False))
    assert facts["Witnesses"].startswith("classifier") and facts["Combination"] == "learnt"


def test_a_method_with_a_datastore_of_its_own_has_all_that_goes_with_it(tiny_corpus, tiny_settings, tmp_path):
    settings = {name: value for name, value in tiny_settings.items() if name != "gamma"}
    with denn.train(tiny_corpus, out=tmp_path / "knn", method="knn", allow_poor=True, **settings) as model:
        page = Page(render(gather(model, tiny_corpus.test, tiny_corpus.valid, Silent()), model.card, "tiny"))
    assert {"Other values of k", "Datastore size", "Map"} <= set(page.headings())
    assert {"Witnesses and combination", "Confidence", "Omitted"}.isdisjoint(page.headings())


def test_words_that_support_labels_stand_with_the_worst_errors(tiny_findings):
    found, card = tiny_findings
    error = replace(found.errors[0], words={"<i>": ("goal", "red & blue")})
    html = render(replace(found, errors=[error, replace(error, words={})]), card, "t")
    assert html.count("Supporting words") == 1
    assert "<dt>&lt;i&gt;</dt><dd>goal, red &amp; blue</dd>" in html


def test_facts_at_the_top(page, tiny_encoder):
    facts = dict(zip(*([text for tag, text in page.texts if tag == kind] for kind in ("dt", "dd")), strict=True))
    assert (facts["Method"], facts["Encoder"]) == ("denn", tiny_encoder.name)
    assert facts["Trained on"] == "tiny: 60 documents, 60 for validation"
    assert (facts["Labels"], facts["Datastore"]) == ("6", "60 documents")
    assert str(tiny_encoder.parent) not in "".join(text for _, text in page.texts)


def test_the_share_of_unfamiliar_texts_is_said_where_it_was_measured(tiny_findings):
    found, card = tiny_findings
    for share, said in ((0.05, True), (None, False)):
        html = render(replace(found, evaluation=replace(found.evaluation, unfamiliar=share)), card, "t")
        assert ("Unfamiliar documents: 1 of 20 (5.0 %)" in html) is said
    assert found.evaluation.unfamiliar is not None


def test_the_table_of_scores_is_the_evaluation(html, tiny_model, tiny_corpus):
    with denn.load(tiny_model) as model:
        systems = model.evaluate(tiny_corpus.test).systems
    tuned = systems["neighbours"]["tuned"]
    cells = [tuned[metric] for metric in ("micro_precision", "micro_recall", "micro_f1", "macro_f1")]
    row = f'<th scope="row">neighbours<td class="word">tuned, {tuned["threshold"]:.2f}'
    assert row + "".join(f"<td>{100 * cell:.1f}" for cell in cells) in html


@pytest.mark.parametrize(
    ("mean", "reached", "said"),
    [
        (1.0, 0, "Mean λ is 1.00: the classifier scores no label at γ = 0.5 or above in any text, so"),
        (
            0.992,
            20,
            "scores labels at γ = 0.5 or above in every text, and the neighbours agree with its confident labels.",
        ),
        (0.995, 3, "in 17 of 20 texts the classifier scores no label at γ = 0.5 or above, so the neighbours decide"),
        (0.99, 0, None),
    ],
)
def test_why_the_neighbours_decide_alone(lambda_findings, mean, reached, said):
    found, card = lambda_findings
    evaluation = replace(found.evaluation, confidence=mean)
    html = render(
        replace(found, evaluation=evaluation, neighbourhood=replace(found.neighbourhood, reached=reached)), card, "t"
    )
    assert "Mean λ" not in html if said is None else said in html


def test_lines_that_coincide_are_said_to(lambda_findings):
    found, card = lambda_findings
    assert "The lines “denn” and “neighbours” coincide." not in render(found, card, "t")
    curves = {**found.curves, "neighbours": found.curves["final"]}
    assert render(replace(found, curves=curves), card, "t").count("The lines “denn” and “neighbours” coincide.") == 2


def test_a_page_that_cannot_be_written_leaves_nothing(tiny_model, tiny_corpus, tmp_path):
    page = tmp_path / "page.html"
    (page / "in the way").mkdir(parents=True)
    with denn.load(tiny_model) as model, pytest.raises(ConfigError, match=r"Cannot write .*page\.html: "):
        write(page, model, "t", tiny_corpus.test, (), Silent())
    assert list(tmp_path.iterdir()) == [page]


def test_a_method_without_datastore_says_what_is_left_out(tiny_corpus, tmp_path):
    with denn.train(tiny_corpus, out=tmp_path / "dummy", method="dummy") as model:
        page = Page(render(gather(model, tiny_corpus.test, tiny_corpus.valid, Silent()), model.card, "tiny"))
    assert {"Confidence", "Other values of k and γ", "Datastore size", "Map"}.isdisjoint(page.headings())
    assert page.headings()[-1] == "Omitted"
    assert any("the method dummy has no datastore" in text for _, text in page.texts)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, tiny_settings):
    """A corpus of two labels, one of them a script, and a model of it."""
    names = (EVIL, "b & 'c'")
    train = [Document(f"{EVIL} goal {number}", names[: 1 + number % 2], f"{EVIL}{number}") for number in range(12)]
    test = [
        Document(f"{EVIL} violin \x00", (names[1], f"{EVIL} new"), f"{EVIL}\udcff"),
        Document("<b>", names[:1], "t"),
    ]
    corpus = denn.Corpus(train, train[:4], test, name=EVIL)
    settings = {**tiny_settings, "epochs": 1, "allow_poor": True}
    model = denn.train(corpus, out=tmp_path_factory.mktemp("models") / "hostile", **settings)
    with model:
        yield model, corpus


def test_what_users_write_is_no_markup(hostile, tmp_path):
    model, corpus = hostile
    write(tmp_path / "page.html", model, f"{EVIL}.jsonl", corpus.test, corpus.valid, Silent())
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in html
    page = Page(html)
    assert len(page.all("script")) == 1
    assert len(page.all("b")) == 0
    assert [text for tag, text in page.texts if tag == "h1"] == [f"denn on {EVIL}.jsonl"]
    assert any(tag == "p" and text.startswith(EVIL) for tag, text in page.texts)
    assert any(tag == "h3" and text.endswith(f". {EVIL}?") for tag, text in page.texts)  # a lone surrogate
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_thousands_of_labels_make_a_page_that_can_be_sent(tiny_model, tiny_corpus):
    with denn.load(tiny_model) as model:
        found = gather(model, tiny_corpus.test, (), Silent())
    names = tuple(f"a label of some length, number {number}" for number in range(4271))
    nothing = torch.zeros(3, 4271, dtype=torch.bool)
    evaluation = replace(found.evaluation, names=names, table=label_table(nothing, nothing))
    html = labels(replace(found, evaluation=evaluation, train_counts=[12345] * 4271))
    assert html.count("<tr>") == 4272
    assert len(html.encode()) < 1_000_000


def test_perfect_predictions_have_no_errors_to_show(tiny_model, tiny_corpus):
    with denn.load(tiny_model) as model:
        texts = [document.text for document in tiny_corpus.test]
        right = [Document(text, p.labels) for text, p in zip(texts, model.predict(texts), strict=True)]
        html = render(gather(model, right, (), Silent()), model.card, "tiny")
    assert "All texts were tagged correctly." in html
    assert "There are no validation texts" in html
    assert "Micro-F1 100.0 %" in html
