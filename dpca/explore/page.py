"""The page: Bokeh widgets for the views of an `Explorer`. Nothing is computed in the server's thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bokeh.document import Document
from bokeh.events import ValueSubmit
from bokeh.models import BasicTicker, ColumnDataSource, Range1d
from bokeh.models.widgets import Button, Checkbox, Div, Select, Slider, Spinner, TextInput, Widget
from bokeh.plotting import figure

from dpca.explore import markup
from dpca.explore.explorer import ORDERS, Explorer
from dpca.explore.tasks import Tasks
from dpca.explore.words import error_text
from dpca.kernels.algebra.types import Array
from dpca.storage.errors import printable

#: Numbers of thumbnails and of eigenimages on the page.
GALLERY, EIGENIMAGES = 18, 11
# Milliseconds between two checks for a new model, and most seconds of one search for a name.
_POLL, _SEARCH = 250, 5.0
# Seconds after which the thumbnails made so far are shown.
_PATIENCE = 0.3
# Most seconds between a change of the text and the key that made it.
_SAME_KEY = 5.0
_SEARCHED = 2000
# Colors of the curve, and of the mark on it.
_LINE, _INK = "#4f8fc0", "#e07a3f"
# Bokeh draws each widget in a shadow root, and the page's style sheet does not apply there.
_STYLES = Path(__file__).with_name("static").joinpath("widgets.css").read_text()


class ExplorerPage:
    """One visitor's page. ``document`` keeps it alive.

    Parameters
    ----------
    explorer : Explorer
    document : Document
    """

    def __init__(self, explorer: Explorer, document: Document) -> None:
        self._explorer, self._document = explorer, document
        # Passes over names or scores have their own thread, so that sliders never wait for them.
        self._tasks, self._long = Tasks(document), Tasks(document)
        n = self._n = 0 if explorer.facts is None else explorer.facts.n_samples
        self._order: Sequence[int] | Array = range(n)
        self._found: list[int] | None = None
        self._searched = ("", 0)
        self._changed = -math.inf  # when the text was changed, until Enter follows
        self._page, self._seen, self._shown = 0, -1, 0
        #: The samples of the gallery, and what was made of them: name and thumbnail.
        self._chosen: list[int] = []
        self._made: dict[int, tuple[str, Array]] = {}
        self._build(n)
        document.on_session_destroyed(lambda _: self._end())
        document.add_periodic_callback(self._poll, _POLL)
        self._poll()
        if n:
            self._show_sample()
            self._show_gallery()

    def _end(self) -> None:
        self._tasks.end()
        self._long.end()

    # -- widgets

    def _build(self, n: int) -> None:
        explorer, facts = self._explorer, self._explorer.facts
        planes = 1 if facts is None else facts.n_planes
        polite = {"aria-live": "polite"}
        self._alert = _styled(Div, "alert", visible=False, html_attributes={"role": "alert"}, render_as_text=True)
        self._news = _styled(Div, "news", visible=False, html_attributes=polite, render_as_text=True)
        self._stop = _styled(Button, "stop", label="Stop the fit", visible=False)
        self._name = _styled(Div, "name", html_attributes=polite)
        self._panels = _styled(Div, "panels")
        self._numbers = _styled(Div, "numbers", html_attributes=polite)
        self._k = _styled(Slider, "k", start=0, end=1, value=0, step=1, title="components k", visible=False)
        self._sample = _styled(Spinner, "sample", low=0, high=max(n - 1, 0), value=0, step=1, title="sample", width=130)
        self._plane = _styled(
            Slider, "slice", start=0, end=max(planes - 1, 1), value=explorer.middle, step=1, title="slice"
        )
        self._projected = _styled(Checkbox, "projection", label="maximum projection", active=False)
        self._search = _styled(TextInput, "search", title="search by name", placeholder="a part of a name, or a number")
        self._orders = _styled(Select, "order", title="order", value="stack", options=[("stack", ORDERS["stack"])])
        self._previous = _styled(Button, "previous", label="Previous")
        self._next = _styled(Button, "next", label="Next")
        self._where = _styled(Div, "where", html_attributes=polite, render_as_text=True)
        in_gallery = {"role": "group", "aria-label": "samples to choose from"}
        self._gallery = _styled(Div, "gallery", css_classes=["gallery"], html_attributes=in_gallery)
        in_model = {"role": "group", "aria-label": "mean and eigenimages"}
        self._eigen = _styled(Div, "eigenimages", css_classes=["eigen"], html_attributes=in_model)
        self._description = _styled(Div, "model", render_as_text=True)
        self._curve, self._mark = (ColumnDataSource({"k": [], "share": []}) for _ in range(2))
        self._chart = self._variance()
        for widget, changed, do in (
            (self._k, "value", self._show_sample),
            (self._sample, "value", self._show_sample),
            (self._plane, "value", self._show_plane),
            (self._projected, "active", self._show_plane),
            (self._search, "value", self._find_text),
            (self._orders, "value", self._sort),
        ):
            widget.on_change(changed, lambda attr, old, new, do=do: do())
        self._stop.on_click(lambda: explorer.stop_fit())
        self._search.on_event(ValueSubmit, lambda _: self._find_more())
        self._previous.on_click(lambda: self._turn(-1))
        self._next.on_click(lambda: self._turn(1))
        samples = [self._name, self._panels, self._sample, self._k, self._numbers]
        samples += [self._plane, self._projected] if planes > 1 else []
        # Thumbnails come last, so that Tab reaches all other widgets without passing through them.
        browse = [self._search, self._orders, self._previous, self._where, self._next, self._gallery]
        model = [self._description, self._eigen, self._chart]
        for widget in [self._alert, self._news, self._stop, *(samples + browse if n else []), *model]:
            widget.css_classes = [*widget.css_classes, f"at-{widget.name}"]
            self._document.add_root(widget)
        self._document.title = "dpca explore" if facts is None else f"{printable(facts.path)} - dpca explore"

    def _variance(self) -> Any:
        chart = figure(
            height=240,
            sizing_mode="stretch_width",
            toolbar_location=None,
            name="variance",
            tools="",
            x_axis_label="components",
            y_axis_label="explained variance",
            y_range=Range1d(start=0, end=1.02),
            visible=False,
            html_attributes={"role": "img", "aria-label": "share of the variance that the leading components explain"},
            background_fill_color=None,
            border_fill_color=None,
            outline_line_color=None,
        )
        chart.line("k", "share", source=self._curve, color=_LINE, line_width=2)
        chart.scatter("k", "share", source=self._mark, color=_INK, size=9)
        chart.grid.grid_line_color = "#88888833"
        chart.xaxis.ticker = BasicTicker(min_interval=1)
        for axis in chart.axis:  # `page.js` sets the other colors, for light or dark pages
            axis.update(minor_tick_line_color=None)
        return chart

    # -- what is shown

    @property
    def _slice(self) -> int | None:
        return None if self._projected.active else _whole(self._plane.value)

    def _show_sample(self) -> None:
        n = self._n
        index, k, plane = min(_whole(self._sample.value), n - 1), _whole(self._k.value), self._slice
        if not n:
            return
        if index != self._shown and (page := self._page_with(index)) != self._page:
            self._page = page
            self._show_gallery()
        self._shown = index

        def work() -> Callable[[], None]:
            view = self._explorer.view(index, k, plane)
            facts = self._explorer.facts
            assert facts is not None
            name, panels = markup.title(view), markup.triplet(view)
            sizes = markup.numbers(view, facts.sample_bytes, measurable=facts.data_range is not None)

            def show() -> None:
                self._name.text, self._panels.text, self._numbers.text = name, panels, sizes
                _say(self._alert, "")

            return show

        self._tasks.do("sample", work, self._show_error)
        self._mark_share()

    def _page_with(self, index: int) -> int:
        """Return the page of the gallery to show with a sample: in other orders than the stack's, it or the next."""
        if self._found is None and isinstance(self._order, range):
            return index // GALLERY
        before, *_, after = self._gallery.tags
        return self._page + (index == after) - (index == before)

    def _show_gallery(self) -> None:
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
        self._draw_gallery()
        if self._explorer.originals is not None or self._explorer.n_components:
            self._make_thumbnails()

    def _make_thumbnails(self) -> None:
        chosen, made = self._chosen, dict(self._made)

        def work() -> Callable[[], None]:
            until = time.monotonic() + _PATIENCE
            for index in chosen:
                if index not in made:
                    made[index] = self._explorer.names[index], self._explorer.thumbnail(index)
                    # A slider moved, and the sample has priority; or there is something to show.
                    if self._tasks.waits("sample") or time.monotonic() > until:
                        break
            return show

        def show() -> None:
            if chosen is not self._chosen:
                return
            self._made = made
            self._draw_gallery()
            if len(made) < len(chosen):
                self._make_thumbnails()

        def fail(error: Exception) -> None:
            self._show_error(error)
            if chosen is self._chosen:
                self._draw_gallery(busy=False)

        self._tasks.do("gallery", work, fail)

    def _draw_gallery(self, *, busy: bool = True) -> None:
        """Show the thumbnails so far, and empty ones instead of the others."""
        samples = [(index, *self._made.get(index, ("", None))) for index in self._chosen]
        self._gallery.text = markup.gallery(samples, busy=busy)

    def _show_model(self) -> None:
        version, plane = self._explorer.version, self._slice

        def work() -> Callable[[], None]:
            shown = self._explorer.components(EIGENIMAGES, plane)
            text = "" if shown is None else markup.eigenimages(shown)
            options: list[Any] = list(self._explorer.orders.items())

            def show() -> None:
                if self._orders.options != options:
                    self._orders.options = options
                if shown is None:
                    return
                self._eigen.text, self._description.text = text, shown.description
                self._curve.data = {"k": list(range(1, len(shown.explained) + 1)), "share": shown.explained.tolist()}
                self._chart.visible = len(shown.explained) > 0
                self._mark_share()

            return show

        self._seen = version
        self._tasks.do("model", work, self._show_error)

    def _mark_share(self) -> None:
        share, k = self._curve.data["share"], _whole(self._k.value)
        self._mark.data = {"k": [k], "share": [share[k - 1]]} if 1 <= k <= len(share) else {"k": [], "share": []}

    def _poll(self) -> None:
        explorer = self._explorer
        _say(self._news, explorer.news or explorer.progress)
        self._stop.visible = explorer.fitting
        if explorer.version == self._seen:
            return
        if (k := explorer.n_components) and self._k.end != max(k, 2):
            last = self._k.value == self._k.end or self._k.start == 0  # the slider stays at its end when k grows
            self._k.update(start=1, end=max(k, 2), value=k if last else min(_whole(self._k.value), k), disabled=k == 1)
            self._k.visible = True
        self._show_model()
        if explorer.facts is not None:
            self._show_sample()
            if explorer.originals is None and not self._made:
                self._show_gallery()

    # -- what is asked for

    def _show_plane(self) -> None:
        self._show_sample()
        self._show_model()

    def _sort(self) -> None:
        name = self._orders.value
        self._search.value, self._found = "", None
        self._where.text = "sorting"

        def work() -> Callable[[], None]:
            order = self._explorer.order(name)

            def show() -> None:
                self._order, self._found, self._page = order, None, 0
                self._show_gallery()
                if len(order):
                    self._sample.value = int(order[0])

            return show

        self._long.do("order", work, self._show_error)

    def _find_text(self) -> None:
        """Search for a new text."""
        self._changed = time.monotonic()
        self._find()

    def _find(self) -> None:
        text = self._search.value.strip()
        if not text:
            self._found, self._page = None, 0
            self._show_gallery()
            return
        known, first = self._searched
        before = self._found if known == text and self._found else []
        first = first if known == text and self._found is not None else 0
        self._where.text = "searching"

        def work() -> Callable[[], None]:
            names = self._explorer.names
            found, end = names.find(
                text, first=first, most=_SEARCHED, seconds=_SEARCH, wanted=lambda: not self._long.waits("search")
            )

            def show() -> None:
                self._found, self._searched = [*before, *found], (text, end)
                self._page = len(before) // GALLERY
                self._show_gallery()
                if found:
                    self._sample.value = found[0]

            return show

        self._long.do("search", work, self._show_error)

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
        self._show_gallery()

    def _show_error(self, error: Exception) -> None:
        _say(self._alert, error_text(error))


def _styled(kind: Callable[..., Widget], name: str, **options: Any) -> Any:
    """Return a widget in the page's style. `page.css` places it by its name."""
    return kind(name=name, stylesheets=[_STYLES], **options)


def _say(where: Div, text: str) -> None:
    """Show a message, or hide an empty one."""
    if where.text != text:
        where.update(text=text, visible=bool(text))


def _whole(value: float | None) -> int:
    """Return a widget's value as a natural number; 0 for NaN, infinity or None, which a visitor may send."""
    return max(0, int(value)) if value is not None and math.isfinite(value) else 0
