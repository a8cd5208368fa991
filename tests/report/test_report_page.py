"""The page of a report in a browser: on telephones and laptops, light and dark, by keyboard alone."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpca import plots
from dpca.plots.png import pieces_of, png
from dpca.report.record import write_report
from tests.conftest import smooth_images
from tests.helpers.axe import WIDTHS, too_wide, violations

NAMES = [f"photo-{i}.jpg" for i in range(5)]
REPORT = {
    "samples": 240,
    "sample_shape": (250, 250, 3),
    "cells": 256,
    "cell_shape": (16, 16),
    "bytes_compressed": 1_340_000,
    "bytes_ratio": 33.6,
    "bytes_given": 2_100_000,
    "bytes_decoded": 45_000_000,
    "psnr": 36.1,
    "mse": 0.000247,
    "data_range": [0, 255],
    "ssim_mean": 0.9288,
    "ssim_min": 0.8747,
    "ssim_min_name": "a-long-name-without-any-place-to-break-it-" * 3,
    "goal": {"name": "psnr", "value": 36},
    "notes": ["components of whole samples cannot reach 36 dB"],
    "rejected": [("broken.jpg", "is truncated")],
    "stages": {"ingest": {"seconds": 1.0, "bytes": 10**8, "peak_memory": 10**8}, "choose cells": {"seconds": 12.0}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = smooth_images(5, (20, 20, 3))
    figures = {
        "comparison": plots.comparison(images, images // 2 * 2, NAMES, np.linspace(0.8, 0.9, 5), (0, 255)),
        "eigenimages": plots.eigenimages(images[..., 0] / 255.0 - 0.5),
        "ssim_histogram": plots.ssim_histogram(np.linspace(0.8, 0.9, 50)),
    }
    write_report(folder := tmp_path_factory.mktemp("r"), REPORT, figures, title="Cell PCA of photos")
    return folder


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def page(browser: Any, folder: Path, scheme: str) -> Iterator[Any]:
    # The script of axe-core is the only one: the page allows none.
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto((folder / "index.html").as_uri())
    yield page
    context.close()


def test_it_fits_every_window_and_violates_no_rule(page: Any) -> None:
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert too_wide(page) == 0, width
        assert not violations(page), width


def lefts(page: Any, figure: int) -> int:
    """Return how many pieces of a picture stand beside each other."""
    places = page.locator("figure").nth(figure).locator(".pieces").first.locator(".zoom").all()
    return len({round(place.bounding_box()["x"]) for place in places})


def test_pieces_stack_on_a_narrow_screen(page: Any) -> None:
    for width, columns in zip(WIDTHS, ((1, 2, 1), (2, 5, 1), (2, 5, 1)), strict=True):
        page.set_viewport_size({"width": width, "height": 800})
        assert tuple(lefts(page, figure) for figure in range(3)) == columns
        places = [place.bounding_box() for place in page.locator("figure .zoom").all()]
        assert min(place["width"] for place in places) > 100


def test_a_picture_enlarges_by_a_tap_and_by_the_keyboard(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    shown = page.locator(".zoom img").nth(1)
    before = shown.bounding_box()["width"]
    for enlarge in (lambda: shown.click(), lambda: (page.keyboard.press("Tab"), page.keyboard.press("Space"))):
        enlarge()
        assert page.locator(":checked").count() == 1
        box = page.locator(".zoom:has(:checked)").bounding_box()
        assert (box["x"], box["width"], box["height"]) == (0, 390, 800)
        assert page.locator(":checked + img").bounding_box()["width"] > 1.2 * before
        assert too_wide(page) == 0
        assert not violations(page)
        page.keyboard.press("Space")
        assert page.locator(":checked").count() == 0


def test_what_was_asked_and_reached_comes_first_and_cost_last(page: Any) -> None:
    text = page.locator("main").inner_text()
    order = (
        *("A PSNR of at least 36 dB.", "1.6 times smaller", "than the input: 2.1 MB", "36.1 dB", "Left out: 1"),
        *("Components of whole samples cannot reach 36 dB.", "Originals and reconstructions"),
        *("Time and memory", "All numbers", "33.6 times smaller than the decoded samples", "is truncated"),
    )
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_pieces_are_those_of_the_picture() -> None:
    images = smooth_images(5, (20, 20, 3))
    whole = png(plots.comparison(images, images, NAMES, None, (0, 255)))
    pixels = np.asarray(Image.open(io.BytesIO(whole)).convert("RGB"))
    found = list(pieces_of(whole, "all"))
    assert [piece.label for piece, _ in found] == NAMES
    covered = np.zeros(pixels.shape[:2], int)
    for piece, content in found:
        at = np.s_[piece.top : piece.top + piece.height, piece.left : piece.left + piece.width]
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), pixels[at])
        covered[at] += 1
    # Nothing that is drawn is lost, and hardly anything is shown twice.
    assert not (pixels[covered == 0] < 255).any()
    assert (covered > 1).mean() < 0.01
