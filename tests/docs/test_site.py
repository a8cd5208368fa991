"""The site of the documentation is built without a warning and without the network."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import dpca
from tests.helpers.axe import WIDTHS, too_wide, violations
from tests.helpers.forked import Programs, printed_by

ROOT = Path(__file__).parents[2]
pytest.importorskip("furo", reason='needs pip install -e ".[docs]"')


class Page(HTMLParser):
    """The loaded files, links, anchors and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places.add(given.get("id", ""))
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif tag in ("script", "img", "link"):
            self.loaded.append(given.get("src", given.get("href", "")))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, programs: Programs) -> Path:
    folder = tmp_path_factory.mktemp("site")
    printed = printed_by(programs, [sys.executable, "-m", "sphinx", "-W", "-q", str(ROOT / "docs"), str(folder)])
    assert not printed
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def inside(pages: dict[Path, Page], kind: str) -> Iterator[tuple[Path, str]]:
    """Yield the references of pages within the site: absolute path and anchor."""
    for path, page in pages.items():
        for name in getattr(page, kind):
            if name and not re.match(r"[a-z]+:", name):
                file, _, place = name.partition("#")
                yield (path.parent / file.partition("?")[0]).resolve() if file else path, place


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert not {name for page in pages.values() for name in page.loaded if "//" in name}
    assert not {path for path, _ in inside(pages, "loaded") if not path.exists()}


def test_every_link_has_a_target(pages: dict[Path, Page]) -> None:
    links = set(inside(pages, "links"))
    assert len(links) > 100
    # scripts fill genindex and search
    assert not {link for link in links if not link[0].exists()}
    assert not {(path, place) for path, place in links if place and path in pages and place not in pages[path].places}


def test_every_public_name_has_its_entry(pages: dict[Path, Page]) -> None:
    named = {place for path, page in pages.items() if path.parent.name == "api" for place in page.places}
    missing = {f"dpca.{name}" for name in dpca.__all__ if not inspect.ismodule(getattr(dpca, name))} - named
    assert not missing, f"write docs/api/<Name>.md for {sorted(missing)}, and name it in docs/api/index.md"
    assert {
        "dpca.metrics.ssim",
        "dpca.plots.eigenimages",
        "dpca.analysis.gram",
        "dpca.timeseries.hilbert_eof",
        "dpca.storage.ingest",
        "dpca.jobs.compress",
        "dpca.CellPCA.transform",
        "dpca.torch.dataset.ScoresDataset",
        "dpca.torch.rednet.RedNet",
    } <= named


def test_the_index_of_the_api_has_a_sentence_for_each_name(pages: dict[Path, Page], site: Path) -> None:
    text = pages[site / "api" / "index.html"].text
    for module in (dpca, dpca.plots, dpca.timeseries, dpca.metrics):
        for name in getattr(module, "__all__", ()):
            assert re.search(rf"\b{module.__name__}\.{name}\s+[A-Z][^\n]+\.", text), f"{module.__name__}.{name}"


def test_the_home_page_has_a_card_with_a_picture_for_each_audience(site: Path) -> None:
    cards = (site / "index.html").read_text().split('<div class="card docutils container">')[1:]
    cards = [card.partition("</div>")[0] for card in cards]
    assert len(cards) == 8
    for card in cards:
        assert re.search(r'<img alt="[^"]*" src="_images/[^"]+"', card)
        assert card.count("<strong>") == 1


def test_included_parts_are_on_their_pages(site: Path, pages: dict[Path, Page]) -> None:
    for name, words in {
        "index": ["Principal component analysis for", "Bounded memory."],
        "quickstart": ["Two lines", "Your own data", "Larger than one machine"],
        "benchmarks": ["Labeled Faces in the Wild"],
        "guarantees": ["Verified on every read."],
        "architecture": ["Data flow"],
        "changes": ["1.0.0rc1"],
        "contributing": ["A streaming rule"],
        "guides/operators": ["129, 130 or 143"],
        "formats": ["ssim_min", "samples/"],
    }.items():
        assert not [word for word in words if word not in pages[site / f"{name}.html"].text], name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDTHS[0], WIDTHS[-1]])
def test_pages_serve_people_who_do_not_see_them(site: Path, browser: Any, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    for name in ("index", "formats", "benchmarks", "search", "genindex", "guides/microscopy", "api/index", "api/PCA"):
        page.goto((site / f"{name}.html").as_uri())
        assert not violations(page), name
        assert too_wide(page) <= 0, name
    context.close()
