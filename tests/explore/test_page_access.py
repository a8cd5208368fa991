"""The page for all: on telephones and laptops, light and dark, checked by axe-core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpca.explore.opening import open_explorer
from dpca.explore.server import PageServer
from tests.explore.conftest import Visit
from tests.helpers.axe import WIDTHS, too_wide, violations


def test_the_page_fits_every_window_and_violates_no_rule(
    stores: Path, served: Callable[..., PageServer], visits: Callable[[str], Visit]
) -> None:
    page = visits(served(open_explorer(str(stores / "small.zarr"))).address).page
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            assert too_wide(page) == 0, (scheme, width)
            assert not violations(page), (scheme, width)
