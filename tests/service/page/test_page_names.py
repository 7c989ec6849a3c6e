"""The page of a model whose labels are ids of a vocabulary: it shows names and stores ids."""

import shutil

import pytest
from acting import TEXT, expect, marks, names, tag

pytestmark = marks


@pytest.fixture(scope="module")
def named(named_model, tmp_path_factory, serving):
    with serving(shutil.copytree(named_model, tmp_path_factory.mktemp("served") / "named")) as running:
        yield running


def test_labels_are_shown_and_added_by_name(opened, named, names_of_labels) -> None:
    page = opened(at=named)
    tag(page)
    with named.client() as client:
        said = client.post("/v1/predict", json={"text": TEXT, "evidence": 5}).json()
    assert names(page, "#chosen") == [names_of_labels[label] for label in said["labels"]]
    chips = page.locator("#neighbours .chips li").all_text_contents()
    assert chips and set(chips) <= set(names_of_labels.values())
    page.locator("#add-label").fill("weath")
    page.get_by_role("option", name="rare: weather").click()
    expect(page.locator('.label-row[data-label="http://example.org/5"] .accept')).to_have_attribute(
        "aria-pressed", "true"
    )
    page.locator("#accept-all").click()
    page.locator("#teach").click()
    expect(page.locator("#difference")).to_be_visible()
    with named.client() as client:
        (newest, *_) = client.get("/v1/documents", params={"source": "teach: page"}).json()["documents"]
    assert "http://example.org/5" in newest["labels"] and set(newest["labels"]) <= set(names_of_labels)
    page.locator("#undo").click()
    expect(page.locator("#undo")).to_be_hidden()


def test_lists_show_names_and_filter_by_them(opened, named) -> None:
    page = opened("#/labels", at=named)
    link = page.locator("#labels-rows a", has_text="haute cuisine")
    expect(link).to_have_attribute("title", "http://example.org/1")
    link.click()
    expect(page.locator("#documents-label")).to_have_value("haute cuisine")
    expect(page.locator("#documents-rows .chips").first).to_contain_text("haute cuisine")
    page.locator("#documents-label").fill("sport")
    page.locator("#documents-form").evaluate("form => form.requestSubmit()")
    expect(page.locator("#documents-rows .chips").first).to_contain_text("sport")
    page.evaluate("location.hash = '#/map'")
    expect(page.locator("#legend .name").first).not_to_contain_text("example.org")
