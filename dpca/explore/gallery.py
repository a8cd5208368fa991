"""The samples to choose from: thumbnails, their order, and a search by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from bokeh.events import ValueSubmit
from bokeh.models.widgets import Button, Div, TextInput
from markupsafe import Markup

from dpca.explore import markup
from dpca.explore.explorer import ORDERS, Explorer
from dpca.explore.pictures import PERCENTILES, Contrast
from dpca.explore.tasks import Tasks
from dpca.explore.widgets import choice, set_busy, styled
from dpca.kernels.algebra.types import Array
from dpca.storage.errors import DataError

#: Number of thumbnails on the page.
GALLERY = 18
# Most seconds of one search for a name, and most samples that it finds.
_SEARCH, _SEARCHED = 5.0, 2000
# Seconds after which the thumbnails made so far are shown.
_PATIENCE = 0.3
# Most seconds between a change of the text and the key that made it.
_SAME_KEY = 5.0


class Gallery:
    """The widgets of the thumbnails.

    Parameters
    ----------
    explorer : Explorer
    tasks, long : Tasks
        Work with a few samples, which a request for another sample interrupts; and passes over names or scores.
    choose : callable
        Shows a sample.
    fail : callable
        Reports an error.
    """

    def __init__(
        self,
        explorer: Explorer,
        tasks: Tasks,
        long: Tasks,
        choose: Callable[[int], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._explorer, self._tasks, self._long, self._choose, self._fail = explorer, tasks, long, choose, fail
        n = self._n = 0 if explorer.facts is None else explorer.facts.n_samples
        self._order: Sequence[int] | Array = range(n)
        self._found: list[int] | None = None
        self._searched = ("", 0)
        self._changed = -math.inf  # when the text was changed, until Enter follows
        self._page, self._current, self._contrast = 0, 0, PERCENTILES
        # The samples of the page, and what was made of them: name and thumbnail.
        self._chosen: list[int] = []
        self._made: dict[int, tuple[str, Markup]] = {}
        self._search = styled(TextInput, "search", title="search by name", placeholder="a part of a name, or a number")
        self._orders = choice("order", "order", {"stack": ORDERS["stack"]})
        self._previous = styled(Button, "previous", label="Previous")
        self._next = styled(Button, "next", label="Next")
        self._where = styled(Div, "where", html_attributes={"aria-live": "polite"}, render_as_text=True)
        group = {"role": "group", "aria-label": "samples to choose from"}
        self._gallery = styled(Div, "gallery", classes=("gallery",), html_attributes=group)
        self._search.on_change("value", lambda attr, old, new: self._find_text())
        self._search.on_event(ValueSubmit, lambda _: self._find_more())
        self._orders.on_change("value", lambda attr, old, new: self._sort())
        self._previous.on_click(lambda: self._turn(-1))
        self._next.on_click(lambda: self._turn(1))

    @property
    def widgets(self) -> list[Any]:
        """All widgets. Thumbnails come last, so that Tab reaches the others without passing through them."""
        return [self._search, self._orders, self._previous, self._where, self._next, self._gallery]

    @property
    def has_thumbnails(self) -> bool:
        """Whether there are thumbnails."""
        return bool(self._made)

    def offer(self, orders: dict[str, str]) -> None:
        """Offer orders of samples, name to label."""
        if self._orders.options != (options := list(orders.items())):
            self._orders.options = options

    def follow(self, index: int) -> None:
        """Turn to the page with the sample that is shown."""
        if index != self._current and (page := self._page_with(index)) != self._page:
            self._page = page
            self.show()
        self._current = index

    def show(self, contrast: Contrast | None = None) -> None:
        """Show the current page of the gallery, with another contrast if one is given."""
        if contrast is not None and contrast != self._contrast:
            self._contrast, self._chosen = contrast, []
        some = self._found if self._found is not None else self._order
        last = max(0, (len(some) - 1) // GALLERY)
        self._page = min(max(self._page, 0), last)
        first = self._page * GALLERY
        shown = [int(i) for i in some[first : first + GALLERY]]
        self._previous.disabled, self._next.disabled = self._page == 0, self._page == last
        what = "found" if self._found is not None else "samples"
        self._where.text = f"{first + 1:,} to {first + len(shown):,} of {len(some):,} {what}" if shown else "none found"
        if self._found is not None and (end := self._searched[1]) < self._n:
            self._where.text += f", in the first {end:,} of {self._n:,}: press Enter in the search for more"
        if shown != self._chosen:
            self._chosen, self._made = shown, {}
        # `page.js` moves by keys in this order, of which thumbnails are made only later: the last sample of the page
        # before, those of this page, and the first one of the next. It is empty in the order of the stack.
        beside = [int(some[i]) if 0 <= i < len(some) else None for i in (first - 1, first + len(shown))]
        in_stack = self._found is None and isinstance(self._order, range)
        self._gallery.tags = [] if in_stack else [beside[0], *shown, beside[1]]
        set_busy(self._gallery, busy=False)
        self._draw()
        if self._explorer.originals is not None or self._explorer.n_components:
            self._make()

    def _page_with(self, index: int) -> int:
        """Return the page to show with a sample: in other orders than the stack's, this one or one beside it."""
        if self._found is None and isinstance(self._order, range):
            return index // GALLERY
        before, *_, after = self._gallery.tags
        return self._page + (index == after) - (index == before)

    def _make(self) -> None:
        chosen, made, contrast = self._chosen, dict(self._made), self._contrast

        def work() -> Callable[[], None]:
            until = time.monotonic() + _PATIENCE
            for index in chosen:
                if index not in made:
                    made[index] = self._explorer.names[index], self._thumbnail(index, contrast)
                    # A slider moved, and the sample has priority; or there is something to show.
                    if self._tasks.waits("sample") or time.monotonic() > until:
                        break
            return show

        def show() -> None:
            if chosen is not self._chosen:
                return
            self._made = made
            self._draw()
            if len(made) < len(chosen):
                self._make()

        def fail(error: Exception) -> None:
            self._fail(error)
            if chosen is self._chosen:
                self._draw(busy=False)

        self._tasks.do("gallery", work, fail)

    def _thumbnail(self, index: int, contrast: Contrast) -> Markup:
        try:
            return markup.picture(self._explorer.thumbnail(index, contrast), "", contrast.colors)
        except DataError:  # a broken sample, which the page reports when it is chosen
            return markup.no_picture()

    def _draw(self, *, busy: bool = True) -> None:
        """Show the thumbnails so far, and empty ones instead of the others."""
        samples = [(index, *self._made.get(index, ("", None))) for index in self._chosen]
        self._gallery.text = markup.gallery(samples, busy=busy)

    def _sort(self) -> None:
        name = self._orders.value
        self._search.value, self._found = "", None
        self._where.text = "sorting"
        set_busy(self._gallery)

        def work() -> Callable[[], None]:
            order = self._explorer.order(name)

            def show() -> None:
                self._order, self._found, self._page = order, None, 0
                self.show()
                if len(order):
                    self._choose(int(order[0]))

            return show

        self._long.do("order", work, self._give_up)

    def _find_text(self) -> None:
        """Search for a new text."""
        self._changed = time.monotonic()
        self._find()

    def _find(self) -> None:
        text = self._search.value.strip()
        if not text:
            self._found, self._page = None, 0
            self.show()
            return
        known, first = self._searched
        before = self._found if known == text and self._found else []
        first = first if known == text and self._found is not None else 0
        self._where.text = "searching"
        set_busy(self._gallery)

        def work() -> Callable[[], None]:
            names = self._explorer.names
            found, end = names.find(
                text, first=first, most=_SEARCHED, seconds=_SEARCH, wanted=lambda: not self._long.waits("search")
            )

            def show() -> None:
                self._found, self._searched = [*before, *found], (text, end)
                self._page = len(before) // GALLERY
                self.show()
                if found:
                    self._choose(found[0])

            return show

        self._long.do("search", work, self._give_up)

    def _find_more(self) -> None:
        """Continue an unfinished search in the remaining names, when Enter is pressed."""
        changed, self._changed = self._changed, -math.inf
        if time.monotonic() - changed < _SAME_KEY:
            return  # Enter that changes the text is sent twice: as a change, and as a key
        text, end = self._searched
        if self._found is not None and text == self._search.value.strip() and end < self._n:
            self._find()

    def _turn(self, step: int) -> None:
        self._page += step
        self.show()

    def _give_up(self, error: Exception) -> None:
        self._fail(error)
        self.show()
