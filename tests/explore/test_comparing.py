"""Comparing pictures in a real browser: split, flicker, 100 %, contrast, colors, and all eigenimages."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from PIL import Image

import dpca
from dpca.explore.explorer import Explorer
from dpca.explore.opening import open_explorer
from dpca.explore.page import EIGENIMAGES
from dpca.explore.pictures import COLORS, Contrast, palette
from dpca.explore.server import PageServer
from dpca.plots.panels import levels
from dpca.storage.errors import DataError
from tests.explore.conftest import SHAPE, Visit
from tests.helpers.axe import violations

_WIDTH = "(e) => e.getBoundingClientRect().width"


def pixels(source: str) -> np.ndarray:
    with Image.open(io.BytesIO(base64.b64decode(source.partition("base64,")[2]))) as image:
        return np.asarray(image)


def test_pictures_are_compared_by_keys_and_pointer(
    stores: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    visit = visits(served(open_explorer(str(stores / "small.zarr"), stack=str(stores / "stack.zarr"))).address)
    page = visit.page
    page.wait_for_selector(".at-panels .beside figure:nth-child(3)")
    beside = page.locator(".at-panels .frame").first.evaluate(_WIDTH)
    page.keyboard.press("c")
    page.wait_for_selector(".at-panels .split")
    frame = page.locator(".at-panels .frame").first
    assert frame.evaluate(_WIDTH) > beside
    assert page.locator(".at-panels figure").nth(2).is_hidden()
    cut = "() => getComputedStyle(parts('.at-panels', '.frame')[1]).clipPath"
    assert page.evaluate(cut) == "inset(0px 0px 0px 50%)"
    box = frame.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 9)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 9)
    page.mouse.up()
    page.wait_for_function(f"() => ({cut})() === 'inset(0px 0px 0px 80%)'")
    handle = page.locator(".at-split [role=slider]")
    handle.focus()
    page.keyboard.press("Home")
    page.wait_for_function(f"() => ({cut})() === 'inset(0px)' || ({cut})() === 'inset(0px 0px 0px 0%)'")
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    page.wait_for_selector(".at-panels .flicker")
    seen = "() => getComputedStyle(parts('.at-panels', 'figure')[1]).visibility"
    for expected in ("hidden", "visible", "hidden"):
        page.wait_for_function(f"() => ({seen})() === '{expected}'")
    page.keyboard.press("z")
    page.wait_for_selector(".at-panels .actual")
    assert page.locator(".at-panels img").first.evaluate(_WIDTH) == SHAPE[1]
    page.keyboard.press("c")
    page.wait_for_selector(".at-panels .beside.actual")
    assert not visit.wrong


def test_large_pictures_are_scrolled_together_and_stay_in_place(
    tmp_path: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    values = np.random.default_rng(0).integers(0, 255, (3, 900, 1100), dtype=np.uint8)
    zarr.create_array(tmp_path / "a.zarr", data=values, chunks=(1, 900, 1100))
    opened = open_explorer(str(tmp_path / "a.zarr"))
    opened.explorer.use(dpca.PCA(1).fit(values))
    visit = visits(served(opened, load=False).address)
    page = visit.page
    assert pixels(visit.image(0)).shape == (450, 550)
    page.keyboard.press("z")
    page.wait_for_selector(".at-panels .actual figure:nth-child(3)")
    np.testing.assert_array_equal(pixels(visit.image(0)), values[0])
    scrolled = "() => parts('.at-panels', '.scroll').map((e) => [e.scrollLeft, e.scrollTop]).join(' ')"
    scroll = "parts('.at-panels', '.scroll')[0].scrollTo(300, 200)"
    page.wait_for_function(f"() => ({scroll}, ({scrolled})() === '300,200 300,200 300,200')")
    page.keyboard.press("ArrowRight")
    visit.shows(".at-name", "#1")
    page.wait_for_function(f"() => ({scrolled})() === '300,200 300,200 300,200'")
    page.wait_for_function("() => !thumbnails().some((e) => e.ariaBusy) && !document.querySelector('.busy')")
    assert not visit.wrong
    visit.context.close()  # before the server ends, which sends large pictures


def test_contrast_and_colors_are_chosen(
    tmp_path: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    values = np.random.default_rng(0).normal(500, 20, (3, 40, 50)).astype(np.uint16)
    values[:, 3, 4] = 60_000
    zarr.create_array(tmp_path / "a.zarr", data=values)
    visit = visits(served(open_explorer(str(tmp_path / "a.zarr"))).address)
    page = visit.page
    from playwright.sync_api import expect

    shown, thumbnail = page.locator(".at-panels img"), page.locator(".at-gallery img").first
    first = pixels(visit.image(0))
    assert np.percentile(first, 90) - np.percentile(first, 10) > 80
    for choice, expected in (
        (("contrast", "full range"), (values[0] - float(values[0].min())) / (60_000.0 - values[0].min())),
        (("contrast", "limits"), None),
    ):
        before = visit.image(0), thumbnail.get_attribute("src")
        page.locator(f".at-{choice[0]} select").select_option(label=choice[1])
        if expected is not None:
            expect(shown).not_to_have_attribute("src", before[0])
            expect(thumbnail).not_to_have_attribute("src", before[1])
            np.testing.assert_array_equal(pixels(visit.image(0)), np.rint(expected * 255))
    limits = page.locator(".at-limits input")
    expect(limits).to_have_value(f"{values[0].min()}, 60000")
    limits.fill("400, 600")
    page.keyboard.press("Enter")
    gray = np.rint(np.clip((values[0] - 400.0) / 200, 0, 1) * 255).astype(np.uint8)
    expect(page.locator(".at-numbers")).to_contain_text("400 to 600")
    np.testing.assert_array_equal(pixels(visit.image(0)), gray)
    before = visit.image(0)
    page.locator(".at-colors select").select_option(label="viridis")
    expect(shown).not_to_have_attribute("src", before)
    np.testing.assert_array_equal(pixels(visit.image(0)), levels(gray / 255, palette("viridis")))
    limits.fill("600, 400")
    page.keyboard.press("Enter")
    visit.shows(".at-alert", "lower first")
    assert not visit.wrong


@pytest.mark.parametrize("text", ["", "1", "a, b", "1, 1", "2, 1", "nan, 2", "1, inf", "1, 2, 3"])
def test_limits_are_two_numbers(text: str) -> None:
    with pytest.raises(DataError, match="lower"):
        Contrast.with_limits(text, "gray")


def test_every_palette_has_256_colors() -> None:
    for name in COLORS:
        found = palette(name)
        assert (found is None) == (name == "gray")
        if found is not None:
            assert found.shape == (256, 3)
            assert 0 <= found.min() < found.max() <= 1
    np.testing.assert_array_equal(palette("inverted")[[0, 255]], [[1, 1, 1], [0, 0, 0]])


def test_all_eigenimages_are_reached_by_scrolling(
    tmp_path: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    k = 9 * EIGENIMAGES - 5
    values = np.random.default_rng(0).normal(size=(k + 1, 16, 15)).astype(np.float32)
    dpca.PCA(k).fit(values).save(tmp_path / "m.zarr")
    visit = visits(served(open_explorer(str(tmp_path / "m.zarr"))).address)
    page, found = visit.page, visit.page.locator(".at-eigenimages figcaption")
    from playwright.sync_api import expect

    visit.shows(".at-eigenimages", "mean")
    assert EIGENIMAGES < found.count() < k
    scroll = "() => (scrollTo(0, document.documentElement.scrollHeight), parts('.at-eigenimages', 'figure').length)"
    page.wait_for_function(f"() => ({scroll})() === {k + 1}")
    captions = found.all_inner_texts()
    assert captions[0] == "mean"
    assert [int(caption.split(" ")[0]) for caption in captions[1:]] == list(range(1, k + 1))
    expect(page.locator(".at-more")).to_be_hidden()
    assert not visit.wrong


def test_the_data_range_that_was_found_is_shown(
    tmp_path: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    values = np.random.default_rng(0).integers(200, 4000, (9, 20, 20)).astype(np.uint16)
    np.save(tmp_path / "movie.npy", values)
    dpca.PCA(3).fit(values).save(tmp_path / "model.zarr")
    visit = visits(served(open_explorer(str(tmp_path / "movie.npy"), model=str(tmp_path / "model.zarr"))).address)
    visit.shows(".at-quality", f"{values.min()} to {values.max()}, of 9 samples")
    visit.shows(".at-quality", " dB")
    assert not visit.wrong


def test_a_channel_is_chosen_by_its_name(
    tmp_path: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    x = np.random.default_rng(0).integers(200, 4000, (5, 2, 20, 24)).astype(np.uint16)
    channels = {"Channel": {"Name": ["DAPI", "<b>GFP"], "Color": [65535, 16711935]}}  # blue, green
    tifffile.imwrite(tmp_path / "s.ome.tif", x, metadata={"axes": "TCYX"} | channels)
    page = (visit := visits(served(open_explorer(str(tmp_path / "s.ome.tif"))).address)).page
    page.wait_for_selector(".at-panels img")
    page.wait_for_selector(".at-gallery img")
    both = pixels(first := visit.image(0))
    assert both.shape == (20, 24, 3)
    assert not both[..., 0].any()
    assert page.locator(".at-channel option").all_inner_texts() == ["all", "DAPI", "<b>GFP"]
    assert page.locator(".at-colors select").is_hidden()
    page.locator(".at-channel select").select_option("<b>GFP")
    page.wait_for_function("(before) => parts('.at-panels', 'img')[0].src !== before", arg=first)
    alone = pixels(second := visit.image(0))
    assert alone.ndim == 2
    np.testing.assert_allclose(alone, both[..., 1], atol=1)
    page.locator(".at-colors select").select_option("magma")
    page.wait_for_function("(before) => parts('.at-panels', 'img')[0].src !== before", arg=second)
    assert pixels(visit.image(0)).ndim == 3
    assert not violations(page)
    assert not visit.wrong


def test_one_quality_is_computed_at_a_time_and_the_latest_one_is_shown(
    stores: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, gate, asked = Explorer.measure, threading.Event(), []

    def slowly(explorer: Explorer, index: int, k: int) -> Any:
        asked.append(index)
        assert gate.wait(20)
        return measure(explorer, index, k)

    monkeypatch.setattr(Explorer, "measure", slowly)
    opened = open_explorer(str(stores / "small.zarr"), stack=str(stores / "stack.zarr"))
    visit = visits(served(opened).address)
    page = visit.page
    page.wait_for_selector(".at-quality.busy", state="attached")
    for index in range(1, 6):
        page.keyboard.press("ArrowRight")
        visit.shows(".at-name", f"#{index}")  # pictures do not wait for it
    assert len(asked) == 1
    first = asked[0]
    gate.set()
    expected = measure(opened.explorer, 5, 10**6)["ssim"]
    visit.shows(".at-quality", f"{expected:.4f}")
    assert asked == [first, 5]
    assert not visit.wrong


def test_a_thumbnail_keeps_the_focus_when_others_are_made(
    stores: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    visit = visits(served(open_explorer(str(stores / "stack.zarr"), model=str(stores / "model.zarr"))).address)
    page = visit.page
    page.locator(".at-gallery button[data-sample='3'] img").wait_for()
    page.locator(".at-gallery button[data-sample='3']").focus()
    page.evaluate("() => (model('gallery').text += ' ')")
    page.wait_for_function("() => focused()?.dataset.sample === '3'")
    page.keyboard.press("Enter")
    visit.shows(".at-name", "#3")
    assert not visit.wrong
