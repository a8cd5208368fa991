"""The page in a real browser: widgets change the view, and no request leaves this machine."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr
from bokeh.document import Document
from bokeh.events import ValueSubmit

from dpca.explore import gallery as galleries
from dpca.explore.explorer import Explorer
from dpca.explore.gallery import GALLERY
from dpca.explore.live import LiveFit
from dpca.explore.opening import open_explorer
from dpca.explore.page import ExplorerPage
from dpca.explore.server import PageServer
from tests.conftest import write_images
from tests.explore.conftest import HOSTILE, K, N, Visit


def test_a_stack_with_its_model(
    stores: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    """Slider, keys, search, names that would be scripts; no request leaves, and the policy of the page is kept."""
    server = served(open_explorer(str(stores / "stack.zarr"), model=str(stores / "model.zarr")))
    visit = visits(server.address)
    page = visit.page
    visit.shows(".at-panels", f"k = {K}")
    visit.shows(".at-model", f"StreamingPCA of {N} samples, {K} components")
    assert page.locator(".at-eigenimages img").count() == K + 1
    original, best, ssim = visit.image(0), visit.image(1), visit.number("SSIM")

    # The slider, by its handle.
    handle = page.locator(".at-k [role=slider]")
    assert handle.get_attribute("aria-label") == "number of components"
    handle.focus()
    page.keyboard.press("Home")
    visit.shows(".at-panels", "k = 1")
    assert visit.image(0) == original
    assert visit.image(1) != best
    assert float(visit.number("SSIM")) < float(ssim)
    assert "1 number, 4 bytes" in visit.number("kept")

    # Keys, where nothing else takes them.
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowUp")
    visit.shows(".at-panels", "k = 2")
    page.keyboard.press("ArrowRight")
    visit.shows(".at-name", "#1")
    assert visit.image(0) != original
    page.keyboard.press("ArrowLeft")
    visit.shows(".at-name", "#0")

    # Names are text.
    visit.shows(".at-name", HOSTILE[0])
    visit.shows(".at-gallery", HOSTILE[1].rsplit("/", 1)[-1][:8])
    assert page.title() != "taken"
    assert page.locator("#page script").count() == 0

    # Search, by the key that goes there, and a click on what was found.
    page.keyboard.press("/")
    page.keyboard.type("PORTRAIT-05")
    page.keyboard.press("Enter")
    visit.shows(".at-where", "1 to 10 of 10 found")
    visit.shows(".at-name", "portrait-050")
    page.locator(".at-gallery button").nth(3).click()
    visit.shows(".at-name", "portrait-053")
    chosen = page.locator(".at-gallery button[aria-current]")
    assert chosen.get_attribute("data-sample") == "53"
    page.keyboard.press("ArrowRight")
    visit.shows(".at-name", "portrait-054")
    assert chosen.get_attribute("data-sample") == "54"
    page.keyboard.press("Control+A")

    # By tab to where it can be seen: sliders, fields, buttons, thumbnails.
    page.locator("body").click(position={"x": 2, "y": 2})
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(_FOCUSED))
    assert {"at-k", "at-sample", "at-search", "at-order", "at-gallery"} <= reached

    assert all(re.match(rf"(http|ws)://localhost:{server.port}/|data:", url) for url in visit.asked), visit.asked
    assert not visit.wrong


_FOCUSED = """() => {
  const host = document.activeElement, name = [...host.classList].find((c) => c.startsWith("at-"));
  let at = host;
  while (at.shadowRoot && at.shadowRoot.activeElement) at = at.shadowRoot.activeElement;
  return at.matches(":focus-visible") && getComputedStyle(at).outlineStyle !== "none" ? name : "not seen";
}"""


def test_a_compressed_store_is_sorted_by_quality(
    stores: Path,
    served: Callable[..., PageServer],
    visits: Callable[[str], Visit],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(galleries, "_SEARCHED", 3)
    visit = visits(served(open_explorer(str(stores / "small.zarr"), stack=str(stores / "stack.zarr"))).address)
    quality = zarr.open_group(stores / "small.zarr", mode="r")["ssim"][...]
    visit.shows(".at-order", "SSIM, lowest first")
    visit.page.locator(".at-order select").select_option(label="SSIM, lowest first")
    visit.shows(".at-name", f"#{int(np.argmin(quality))}")
    assert f"SSIM {quality.min():.4f}" in visit.number("stated by the store")
    assert visit.page.locator(".at-eigenimages img").count() > 1
    visit.page.keyboard.press("Escape")
    # Keys follow the order, beyond the last thumbnail, too.
    for number in np.argsort(quality, kind="stable")[1 : GALLERY + 1]:
        visit.page.keyboard.press("ArrowRight")
        visit.shows(".at-name", f"#{number}")
    visit.shows(".at-where", f"{GALLERY + 1} to")
    visit.page.keyboard.press("/")
    visit.page.keyboard.type("portrait")
    visit.page.keyboard.press("Enter")
    visit.shows(".at-where", f"1 to 3 of 3 found, in the first 7 of {N}: press Enter")
    visit.page.keyboard.press("Enter")
    visit.shows(".at-where", f"1 to 6 of 6 found, in the first 10 of {N}")
    assert not visit.wrong


def test_keys_and_thumbnails_are_those_of_the_order_before_pictures_are_made(
    stores: Path,
    served: Callable[..., PageServer],
    visits: Callable[[str], Visit],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Explorer.thumbnail
    slow = threading.Event()
    monkeypatch.setattr(Explorer, "thumbnail", lambda *given: (slow.is_set() and time.sleep(1), made(*given))[1])
    visit = visits(served(open_explorer(str(stores / "small.zarr"), stack=str(stores / "stack.zarr"))).address)
    page, buttons = visit.page, ".at-gallery button"
    order = np.argsort(zarr.open_group(stores / "small.zarr", mode="r")["ssim"][...], kind="stable").tolist()
    assert order[:GALLERY] != sorted(order[:GALLERY])
    visit.shows(".at-order", "SSIM, lowest first")
    page.wait_for_function(_THUMBNAILS, arg=[*range(GALLERY)])
    page.wait_for_function(_ALL_MADE)
    slow.set()
    page.locator(".at-order select").select_option(label="SSIM, lowest first")
    visit.shows(".at-name", f"#{order[0]}")
    assert page.evaluate(_THUMBNAILS, order[:GALLERY])
    last = page.locator(buttons).nth(GALLERY - 1)
    assert last.get_attribute("aria-busy") == "true"
    assert last.inner_text() == f"#{order[GALLERY - 1]}"
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")
    visit.shows(".at-name", f"#{order[1]}")
    last.click()
    visit.shows(".at-name", f"#{order[GALLERY - 1]}")
    page.keyboard.press("ArrowRight")
    visit.shows(".at-name", f"#{order[GALLERY]}")
    assert page.evaluate(_THUMBNAILS, order[GALLERY : 2 * GALLERY])
    page.keyboard.press("ArrowLeft")
    visit.shows(".at-name", f"#{order[GALLERY - 1]}")
    assert page.evaluate(_THUMBNAILS, order[:GALLERY])
    slow.clear()
    page.wait_for_function(_ALL_MADE)
    one = next(number for number in order[:GALLERY] if number < GALLERY)
    picture = page.locator(f"{buttons}[data-sample='{one}'] img")
    shown = picture.get_attribute("src")
    page.locator(".at-order select").select_option(label="as in the stack")
    visit.shows(".at-name", "#0")
    page.wait_for_function(_THUMBNAILS, arg=[*range(GALLERY)])
    page.wait_for_function(_ALL_MADE)
    assert picture.get_attribute("src") == shown
    assert not visit.wrong


_ALL_MADE = "() => !thumbnails().some((e) => e.ariaBusy)"
_THUMBNAILS = """(expected) => {
  const shown = thumbnails().map((e) => Number(e.dataset.sample));
  return JSON.stringify(shown) === JSON.stringify(expected);
}"""


def test_a_broken_photograph_does_not_hide_the_thumbnails_of_others(
    tmp_path: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    broken = write_images(tmp_path / "photos", 5, (12, 14, 3)) / "photo-0002.png"
    broken.write_bytes(broken.read_bytes()[:60])
    visit = visits(served(open_explorer(str(tmp_path / "photos"))).address)
    page = visit.page
    page.wait_for_function(_ALL_MADE)
    assert page.locator(".at-gallery img").count() == 4
    page.locator(".at-gallery button").nth(2).click()
    visit.shows(".at-alert", "photo-0002.png")
    page.keyboard.press("ArrowRight")
    visit.shows(".at-name", "photo-0003")
    page.locator(".at-alert").wait_for(state="hidden")
    assert not visit.wrong


def test_enter_that_changes_the_text_does_not_continue_its_own_search(stores: Path) -> None:
    """A browser sends it as a change and as a key, and the search may end between the two."""
    page, calls = ExplorerPage(open_explorer(str(stores / "stack.zarr")).explorer, Document())._gallery, []
    page._find = lambda: calls.append(page._search.value)
    page._search.value = "portrait"
    page._found, page._searched = [0], ("portrait", 3)
    for expected in (1, 2, 3):
        page._search._trigger_event(ValueSubmit(page._search, "portrait"))
        assert len(calls) == expected
    page._search.value = "7"
    page._search._trigger_event(ValueSubmit(page._search, "7"))
    assert calls == ["portrait"] * 3 + ["7"]


def test_a_fit_is_watched_and_a_lost_stack_is_reported(
    stores: Path, tmp_path: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    """A page that is opened before there is a model; a narrow window shows the whole page, too."""
    values = zarr.open_group(stores / "stack.zarr", mode="r")["samples"][...]
    zarr.create_array(tmp_path / "a.zarr", data=values, chunks=(1, *values.shape[1:]))
    opened = open_explorer(str(tmp_path / "a.zarr"))
    explorer = opened.explorer
    visit = visits(served(opened).address)
    page = visit.page
    assert page.locator(".at-panels img").count() == 1
    use, looked_at = explorer.use, threading.Semaphore(1)
    explorer.use = lambda model: (looked_at.acquire(timeout=20), use(model))  # each model waits until one was seen
    fit = LiveFit(explorer, 4)
    fit.start()
    visit.shows(".at-model", "StreamingPCA of 16 samples, 4 components")
    visit.shows(".at-news", re.compile(rf"16 of {N} samples in \d+ s: the components explain"))
    first, blurred = page.locator(".at-eigenimages img").nth(1).get_attribute("src"), visit.image(1)
    stop = page.get_by_role("button", name="Stop the fit")
    stop.wait_for()
    looked_at.release(100)
    visit.shows(".at-model", f"StreamingPCA of {N} samples, 4 components")
    assert page.locator(".at-eigenimages img").count() == 5
    assert page.locator(".at-eigenimages img").nth(1).get_attribute("src") != first
    assert visit.image(1) != blurred
    stop.wait_for(state="hidden")
    assert explorer.model.n_samples_seen_ == N
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_function("() => document.documentElement.scrollWidth <= 400")
    shutil.rmtree(tmp_path / "a.zarr")
    page.keyboard.press("Escape")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    page.locator(".at-sample input").fill("59")
    page.keyboard.press("Enter")
    visit.shows(".at-alert", "no longer exists")
    assert not visit.wrong


def test_a_model_alone_is_shown_and_the_end_of_the_program_is_reported(
    stores: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    server = served(open_explorer(str(stores / "cells.zarr")))
    visit = visits(server.address)
    visit.shows(".at-model", f"CellPCA of {N} samples, 8 components")
    assert visit.page.locator(".at-eigenimages img").count() == 9
    assert visit.page.locator(".at-panels").count() == 0
    assert not visit.wrong
    assert visit.page.locator("#ended").is_hidden()
    server.stop()
    visit.page.evaluate("() => ask()")
    assert visit.page.locator("#ended").is_visible()


def test_a_volume_has_slices_and_its_address_no_token(
    tmp_path: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    values = np.random.default_rng(0).integers(0, 255, (2, 6, 12, 12), dtype=np.uint8)
    zarr.create_array(tmp_path / "a.zarr", data=values, dimension_names=("sample", "z", "y", "x"))
    visit = visits(served(open_explorer(str(tmp_path / "a.zarr"))).address)
    page = visit.page
    assert "token" not in page.url
    middle = visit.image(0)
    page.locator(".at-slice [role=slider]").focus()
    page.keyboard.press("End")
    from playwright.sync_api import expect

    shown = page.locator(".at-panels img")
    expect(shown).not_to_have_attribute("src", middle)
    last = visit.image(0)
    page.get_by_label("maximum projection").check()
    expect(shown).not_to_have_attribute("src", last)
    assert not visit.wrong
