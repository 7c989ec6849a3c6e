"""The page: tagging files."""

import csv
import io
import json
from pathlib import Path

import pytest
from acting import Page, expect, marks, run_batch

from denn.data.corpus import read_documents
from denn.prediction_types import UNFAMILIAR

pytestmark = marks


def download(page: Page) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        page.click("#batch-download")
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def predicted(service, texts: list[str]) -> list[dict]:
    with service.client() as client:
        return client.post("/v1/predict/batch", json={"texts": texts, "evidence": 0}).json()["predictions"]


def test_batch_csv_with_quotes_newlines_and_semicolons(opened, service) -> None:
    texts = [f'the "goal" of match {n};\r\nthe team' if n % 2 else f"orbit rocket {n}" for n in range(150)] + [""]
    source = io.StringIO()
    writer = csv.writer(source, delimiter=";", lineterminator="\r\n")
    writer.writerows([["nr", "story", "labels"], *([n, text, "old, ones"] for n, text in enumerate(texts))])
    page = opened("#/batch")
    run_batch(page, "news.csv", b"\xef\xbb\xbf" + source.getvalue().encode())
    assert page.input_value("#batch-column") == "story"
    expect(page.locator("#batch-status")).to_contain_text("Done: 151 rows")
    name, content = download(page)
    assert name == "news.tagged.csv"
    assert content.startswith(b"\xef\xbb\xbfnr;story;labels;predicted_labels;scores;familiarity;unfamiliar\r\n")
    rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter=";"))
    assert [row[:3] for row in rows[1:]] == [[str(n), text, "old, ones"] for n, text in enumerate(texts)]
    for row, said in zip(rows[1:], predicted(service, texts[:-1]), strict=False):
        assert [label for label in row[3].split("|") if label] == said["labels"]
        scores = [one["score"] for one in said["scores"] if one["chosen"]]
        assert [float(score) for score in row[4].split("|") if score] == pytest.approx(scores, abs=1e-4)
        assert float(row[5]) == pytest.approx(said["familiarity"], abs=1e-2)
        assert row[6] == ("true" if float(row[5]) < UNFAMILIAR else "")
    assert rows[-1][3:] == ["", "", "", ""]


def test_batch_csv_holds_no_formulas_and_is_read_back(opened, service, tmp_path) -> None:
    texts = ["=1+1 goal", "+match", "-team", "@orbit", "\trocket", "\rgoal", "'=quoted", "'plain'", "a=b", "＝1"]
    source = io.StringIO()
    csv.writer(source).writerows(
        [
            ["text", "-nr"],
            *([text, number] for text, number in zip(texts, "-1 -0.5 +2e3 -a".split() + [""] * 6, strict=True)),
        ]
    )
    page = opened("#/batch")

    def answer(route) -> None:
        labels = [
            {"label": "=HYPERLINK(1)", "score": 0.9, "chosen": True},
            {"label": "-b", "score": 0.8, "chosen": True},
        ]
        asked = route.request.post_data_json["texts"]
        sent.extend(asked)
        one = {"labels": ["=HYPERLINK(1)", "-b"], "scores": labels, "familiarity": None, "unfamiliar": False}
        route.fulfill(json={"predictions": [one for _ in asked]})

    sent: list[str] = []
    page.route("**/v1/predict/batch", answer)
    run_batch(page, "news.csv", source.getvalue().encode())
    expect(page.locator("#batch-status")).to_contain_text("Done: 10 rows")
    _, content = download(page)
    header, *rows = csv.reader(io.StringIO(content.decode(), newline=""))
    assert header == ["text", "'-nr", "labels", "scores", "familiarity", "unfamiliar"]
    assert [row[0] for row in rows] == [text if text in ("'plain'", "a=b") else f"'{text}" for text in texts]
    assert [row[1] for row in rows[:4]] == ["-1", "-0.5", "+2e3", "'-a"]
    assert {row[2] for row in rows} == {"'=HYPERLINK(1)|-b"}
    (tmp_path / "news.tagged.csv").write_bytes(content)
    documents, _ = read_documents(tmp_path / "news.tagged.csv")
    assert [document.text for document in documents] == texts
    assert {document.labels for document in documents} == {("=HYPERLINK(1)", "-b")}
    sent.clear()
    run_batch(page, "news.tagged.csv", content)
    expect(page.locator("#batch-status")).to_contain_text("Done: 10 rows")
    assert sent == texts


def test_batch_jsonl_keeps_what_it_was(opened, service) -> None:
    lines = [
        '{"text": "the goal of the match", "id": 12345678901234567890}',
        "",
        '{"text":"orbit\\nrocket", "deep": {"a": [1.0]}}',
    ]
    page = opened("#/batch")
    run_batch(page, "news.jsonl", "\n".join(lines).encode())
    expect(page.locator("#batch-status")).to_contain_text("Done: 2 rows")
    name, content = download(page)
    assert name == "news.tagged.jsonl"
    first, second = content.decode().splitlines()
    assert first.startswith(lines[0][:-1])
    assert second.startswith(lines[2][:-1])
    for line, said in zip((first, second), predicted(service, ["the goal of the match", "orbit\nrocket"]), strict=True):
        row = json.loads(line)
        assert row["labels"] == said["labels"]
        assert list(row["scores"]) == said["labels"]
        assert row["familiarity"] == pytest.approx(said["familiarity"], abs=1e-2)
        assert row.get("unfamiliar", False) is (row["familiarity"] < UNFAMILIAR)


def test_batch_waits_where_the_service_is_busy_or_the_key_has_used_up_its_limit(opened) -> None:
    page = opened("#/batch", errors=(429,))
    asked = []

    def answer(route) -> None:
        asked.append(len(route.request.post_data_json["texts"]))
        if len(asked) in (2, 3):
            status = 503 if len(asked) == 2 else 429
            route.fulfill(status=status, headers={"Retry-After": "1"}, json={"detail": "Try again later."})
        else:
            route.continue_()

    page.route("**/v1/predict/batch", answer)
    run_batch(page, "many.csv", b"text\n" + b"goal\n" * 130)
    expect(page.locator("#batch-status")).to_contain_text("Done: 130 rows")
    assert asked == [64, 64, 64, 64, 2]


def test_batch_sends_less_if_the_service_takes_too_long(opened) -> None:
    page = opened("#/batch", errors=(504,))
    asked = []

    def answer(route) -> None:
        asked.append(len(route.request.post_data_json["texts"]))
        if asked[-1] > 2:
            route.fulfill(status=504, json={"detail": "The request took longer than 60 s."})
        else:
            route.continue_()

    page.route("**/v1/predict/batch", answer)
    run_batch(page, "slow.csv", b"text\n" + b"goal\n" * 5)
    expect(page.locator("#batch-status")).to_contain_text("Done: 5 rows")
    assert asked == [5, 3, 2, 2, 1]


def test_batch_keeps_what_is_done_and_names_the_row(opened, service) -> None:
    page = opened("#/batch")
    rows = [f"goal {n}" for n in range(80)]
    rows[70] = "x" * 100_001
    run_batch(page, "long.csv", "\n".join(["text", *rows]).encode())
    expect(page.locator("#failure")).to_contain_text("Stopped at row 71: the text has 100,001 characters")
    expect(page.locator("#batch-status")).to_contain_text("70 of 80 rows done")
    _, content = download(page)
    done = ["|".join(said["labels"]) for said in predicted(service, rows[:70])]
    assert any(done)
    assert [row["labels"] for row in csv.DictReader(io.StringIO(content.decode()))] == done + [""] * 10
    page.click("text=Continue without row 71")
    expect(page.locator("#batch-status")).to_contain_text("1 row skipped")


def test_batch_can_be_cancelled(opened) -> None:
    page = opened("#/batch")
    page.route("**/v1/predict/batch", lambda route: None)  # a response that never arrives
    run_batch(page, "many.csv", b"text\n" + b"goal\n" * 130)
    page.click("#batch-cancel")
    expect(page.locator("#batch-status")).to_contain_text("Cancelled. 0 of 130 rows done.")
    page.unroute_all(behavior="ignoreErrors")
    page.click("text=Continue")
    expect(page.locator("#batch-status")).to_contain_text("Done: 130 rows")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": ', "a.jsonl: Line 2 is not valid JSON"),
        ("a.csv", b'text\n"never closed', "a.csv: The quote opened in line 2 is never closed"),
        ("a.csv", b"", "a.csv: the file has no rows"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "a.csv: row 3 has 3 fields, but the first row has 2"),
    ],
)
def test_batch_files_that_cannot_be_read(opened, name: str, content: bytes, said: str) -> None:
    page = opened("#/batch")
    page.set_input_files("#batch-file", {"name": name, "mimeType": "text/plain", "buffer": content})
    expect(page.locator("#failure")).to_contain_text(said)


CSV_CASES = [
    ("a,b\n1,2\n", [["a", "b"], ["1", "2"]]),
    ("a,b\r\n1,2", [["a", "b"], ["1", "2"]]),
    ("\ufeffa;b\n1;2,5\n", [["a", "b"], ["1", "2,5"]]),
    ("a\tb\n1\t\n", [["a", "b"], ["1", ""]]),
    ('a,b\n"x, ""y""\r\nz",2\n', [["a", "b"], ['x, "y"\r\nz', "2"]]),
    ('a,b\n"",\n', [["a", "b"], ["", ""]]),
    ("one\n\ntwo\n", [["one"], ["two"]]),
    ('one\n""\n', [["one"], [""]]),
    ('a;b\n"x;y";"1,2,3"\n', [["a", "b"], ["x;y", "1,2,3"]]),
    ("a,b\r1,2\r", [["a", "b"], ["1", "2"]]),
    ('a,b\n"x\ry",2\n', [["a", "b"], ["x\ry", "2"]]),
    ("a,", [["a", ""]]),
    ("", []),
]


@pytest.mark.parametrize(("text", "rows"), CSV_CASES)
def test_csv_is_read_and_written(opened, text: str, rows: list[list[str]]) -> None:
    page = opened()
    read, written, again = page.evaluate(
        """async text => {
          const { parseCsv, writeCsv } = await import("/page/csv.js");
          const { rows, ...format } = parseCsv(text);
          const written = writeCsv(rows, format);
          return [rows, written, parseCsv(written, format.separator).rows];
        }""",
        text,
    )
    assert read == rows == again
    if rows:
        assert written.startswith("\ufeff") == text.startswith("\ufeff")
        separator = next((mark for mark in "\t;," if mark in text.split("\n")[0]), ",")
        assert list(csv.reader(io.StringIO(written.lstrip("\ufeff"), newline=""), delimiter=separator)) == rows


def test_batch_results_are_decided_and_filtered_before_the_download(opened) -> None:
    page = opened("#/batch")
    scores = {"alpha": [("sport", 0.9, True), ("music", 0.4, False)], "beta": [("music", 0.7, True)], "gamma": []}

    def answer(route) -> None:
        found = [
            {
                "scores": [
                    {"label": label, "score": score, "chosen": chosen}
                    for label, score, chosen in scores[text.split()[0]]
                ],
                "familiarity": 0.5,
                "unfamiliar": text.startswith("gamma"),
            }
            for text in route.request.post_data_json["texts"]
        ]
        route.fulfill(json={"predictions": found})

    page.route("**/v1/predict/batch", answer)
    texts = ["alpha one", "beta Two", "gamma three"] + ["alpha more"] * 60
    run_batch(page, "a.csv", "\n".join(["text", *texts]).encode())
    rows, summary = page.locator("#batch-rows tr"), page.locator("#batch-summary")
    expect(summary).to_have_text("63 rows, 1 without a label.")
    expect(rows).to_have_count(50)
    page.click("#batch-more")
    expect(rows).to_have_count(63)
    expect(rows.nth(50).locator("button")).to_be_focused()
    assert rows.first.locator(".chips li").all_text_contents() == ["sport 0.90"]
    page.select_option("#batch-decide", "one")
    page.fill("#batch-threshold", "0.3")
    expect(rows.first.locator(".chips li")).to_have_text(["sport 0.90", "music 0.40"])
    header, first, *_ = csv.reader(io.StringIO(download(page)[1].decode()))
    assert dict(zip(header, first, strict=True))["labels"] == "sport|music"
    page.select_option("#batch-label", "music")
    expect(summary).to_have_text("62 of 63 rows match, 0 without a label.")
    page.fill("#batch-least", "0.5")
    expect(rows.locator("th")).to_have_text(["2"])
    page.select_option("#batch-label", label="no label")
    page.fill("#batch-least", "")
    expect(rows.locator("th")).to_have_text(["3"])
    expect(rows.first).to_contain_text("unfamiliar")
    page.select_option("#batch-label", "")
    page.fill("#batch-find", "TWO")
    expect(rows.locator("th")).to_have_text(["2"])
    page.fill("#batch-find", "")
    page.check("#batch-unfamiliar")
    expect(rows.locator("th")).to_have_text(["3"])
    rows.locator("button").click()
    expect(page.locator("#result-summary")).to_contain_text("suggested")
    assert page.input_value("#text") == "gamma three"
