"""Every page of the documentation's site, wide and narrow, light and dark."""

from __future__ import annotations

from typing import Final

import pytest
from playwright.sync_api import Browser, expect

from .visit import Site, Visit

pytestmark = pytest.mark.long

CHOOSE: Final = "scheme => document.querySelector(`input[data-md-color-scheme=${scheme}]`).click()"
SIDEWAYS: Final = """() => {
    const page = document.scrollingElement;
    if (page.scrollWidth <= page.clientWidth) return null;
    const reaches = (e) => e.getBoundingClientRect().right > page.clientWidth + 1;
    const widest = [...document.querySelectorAll("main *")].filter(reaches);
    return `${page.scrollWidth} > ${page.clientWidth}: ` +
        widest.slice(0, 3).map((e) => e.outerHTML.slice(0, 90)).join(" | ");
}"""


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_scrolls_sideways_complains_or_fetches_from_elsewhere(
    pages: Site, browser: Browser, width: int
) -> None:
    visit = Visit(browser, pages.address)
    # Each page would index all others for its search, which takes most of the time.
    config = {"lang": ["en"], "separator": " ", "pipeline": [], "fields": {"text": {"boost": 1}}}
    empty: dict[str, object] = {"config": config, "docs": []}
    visit.page.route("**/search_index.json", lambda route: route.fulfill(json=empty))
    visit.page.set_viewport_size({"width": width, "height": 800})
    faults: list[str] = []
    schemes = ["default", "slate"]  # light and dark
    assert len(pages.paths) > 100
    for path in pages.paths:
        visit.page.goto("about:blank")  # which cancels what the last page still loads
        visit.problems.clear()
        visit.page.goto(pages.address + path)
        for scheme in schemes:
            visit.page.evaluate(CHOOSE, scheme)
            expect(visit.page.locator("body")).to_have_attribute("data-md-color-scheme", scheme)
            if sideways := visit.page.evaluate(SIDEWAYS):
                faults.append(f"{path}, {scheme}: {sideways}")
        schemes.reverse()
        faults += [f"{path}: {problem}" for problem in visit.problems]
    visit.page.close()
    assert faults == []
