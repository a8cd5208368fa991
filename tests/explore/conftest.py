"""Small stores, and a browser."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dpca import CellPCA, StreamingPCA
from dpca.explore.opening import Opened
from dpca.explore.page import ExplorerPage
from dpca.explore.server import PageServer
from dpca.jobs.compressed.encode import encode_store
from dpca.jobs.scores.transform import transform_store
from dpca.storage import ingest, open_stack
from dpca.storage.run import Run
from tests.conftest import smooth_images

HOSTILE = ['<script>document.title="taken"</script>', '"><img src=x onerror=alert(1)>', "a\x1b[2Jb", "ä" * 10_000]
N, SHAPE, K = 60, (24, 28, 3), 6


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stack, a model, scores of it, and a compressed store."""
    folder = tmp_path_factory.mktemp("explored")
    names = [*HOSTILE, *(f"portrait-{i:03d}" for i in range(len(HOSTILE), N))]
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for name, image in zip(names, smooth_images(N, SHAPE), strict=True):
            Image.fromarray(image).save(png := io.BytesIO(), "PNG")
            archive.writestr(f"{name}.png", png.getvalue())
    ingest(folder / "images.zip", folder / "stack.zarr", run=Run(threads=1))
    StreamingPCA(K, random_state=0).fit(folder / "stack.zarr").save(folder / "model.zarr")
    CellPCA(8, cell_shape=8).fit(folder / "stack.zarr").save(folder / "cells.zarr")
    opened = open_stack(folder / "stack.zarr")
    transform_store(opened, folder / "model.zarr", folder / "scores.zarr")
    encode_store(opened, folder / "cells.zarr", folder / "small.zarr", psnr=34.0)
    return folder


@pytest.fixture
def served() -> Iterator[Callable[..., PageServer]]:
    """Serve an open store with its model."""
    servers = []

    def serve(opened: Opened, *, load: bool = True) -> PageServer:
        if load and opened.load is not None:
            opened.load()
        server = PageServer("a store", host="127.0.0.1", port=0)
        servers.append(server)
        server.start()
        server.show("<p>first</p>")
        server.mount(lambda document: ExplorerPage(opened.explorer, document))
        return server

    yield serve
    for server in servers:
        server.stop()


class Visit:
    """A visitor's page, with its requests and errors."""

    def __init__(self, browser: Any, address: str) -> None:
        self.context = browser.new_context(viewport={"width": 1200, "height": 900})
        self.page, self.asked, self.wrong = self.context.new_page(), [], []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("websocket", lambda socket: self.asked.append(socket.url))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.wrong.append(said.text))
        self.page.goto(address)
        self.page.wait_for_selector("#page:not([aria-busy])", timeout=40_000)

    def image(self, number: int) -> str:
        return str(self.page.locator(".at-panels img").nth(number).get_attribute("src"))

    def number(self, name: str) -> str:
        self.page.wait_for_selector(".at-quality:not(.busy)", state="attached")
        found = self.page.locator(
            ":is(.at-quality, .at-numbers) dl > div", has=self.page.locator("dt", has_text=name)
        ).locator("dd")
        return str(found.first.inner_text())

    def shows(self, where: str, what: str | re.Pattern[str]) -> None:
        from playwright.sync_api import expect

        expect(self.page.locator(where)).to_contain_text(what, timeout=30_000)


@pytest.fixture(scope="module")
def visits(browser: Any) -> Iterator[Callable[[str], Visit]]:
    made: list[Visit] = []

    def visit(address: str) -> Visit:
        made.append(Visit(browser, address))
        return made[-1]

    yield visit
    for one in made:
        one.context.close()
