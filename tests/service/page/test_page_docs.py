"""The API page: it renders the service's own description, with nothing from elsewhere."""

import httpx
import pytest
from acting import expect
from test_page_access import axe_source

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", [1280, 400])
def test_the_api_page(opened, service, width):
    page = opened(width=width)
    page.goto(f"{service.url}/docs")
    paths = httpx.get(f"{service.url}/openapi.json").json()["paths"]
    operations = sum(len(methods) for methods in paths.values())
    expect(page.locator("#state")).to_contain_text(f"{operations} requests.")
    expect(page.locator("details")).to_have_count(operations)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    expect(page.locator("details h3", has_text="Response")).to_have_count(operations)
    predict = page.locator("details", has=page.locator("summary code", has_text="POST /v1/predict/batch"))
    expect(predict).to_contain_text("Needs the right to read.")
    expect(predict).to_contain_text(f"{service.url}/v1/predict/batch")
    expect(predict).to_contain_text('-d \'{"texts":["…"]}\'')
    expect(predict.locator("td code", has_text="familiarity")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if (source := axe_source()) is not None:
        page.evaluate(source)
        found = page.evaluate("async () => (await axe.run()).violations")
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
    page.fill("#filter", "/UNDO")
    expect(page.locator("details:visible")).to_have_count(1)
