"""The page: Bokeh widgets for the views of an `Explorer`. Nothing is computed in the server's thread."""

from __future__ import annotations

from collections.abc import Callable

from bokeh.document import Document
from bokeh.models import ColumnDataSource
from bokeh.models.widgets import Button, Checkbox, Div, Slider, Spinner, TextInput

from dpca.explore import markup
from dpca.explore.explorer import FULL, LONGEST, Explorer
from dpca.explore.gallery import Gallery
from dpca.explore.pictures import COLORS, CONTRASTS, Contrast, SourceFacts
from dpca.explore.tasks import Tasks
from dpca.explore.widgets import choice, say, set_busy, styled, variance_chart, whole
from dpca.explore.words import error_text
from dpca.storage.errors import DataError, printable

#: Number of eigenimages that are shown at first, and at each further scroll.
EIGENIMAGES = 23
# Milliseconds between two checks for a new model.
_POLL = 250
# The choice of all channels.
_EVERY = "all"


class ExplorerPage:
    """One visitor's page. ``document`` keeps it alive.

    Parameters
    ----------
    explorer : Explorer
    document : Document
    """

    def __init__(self, explorer: Explorer, document: Document) -> None:
        self._explorer, self._document = explorer, document
        # Passes over names or scores, and the quality of a sample, have their own threads, so that sliders never wait
        # for them.
        self._tasks, self._long, self._measuring = (Tasks(document) for _ in range(3))
        n = self._n = 0 if explorer.facts is None else explorer.facts.n_samples
        self._bounds = (0.0, 1.0)
        # The sample and number of components whose quality is shown, and the names of its numbers.
        self._asked: tuple[int, int] = (-1, 0)
        self._measured: tuple[str, ...] = ()
        # The version and slice of the shown eigenimages, and how many there are.
        self._drawn: tuple[int, int | None] = (-1, None)
        self._seen, self._count = -1, 0
        self._gallery = Gallery(explorer, self._tasks, self._long, self._choose, self._show_error)
        self._build(n)
        document.on_session_destroyed(lambda _: self._end())
        document.add_periodic_callback(self._poll, _POLL)
        self._poll()
        if n:
            self._show_sample()
            self._gallery.show()

    def _end(self) -> None:
        for tasks in (self._tasks, self._long, self._measuring):
            tasks.end()

    # -- widgets

    def _build(self, n: int) -> None:
        explorer, facts = self._explorer, self._explorer.facts
        planes = 1 if facts is None else facts.n_planes
        polite = {"aria-live": "polite"}
        self._alert = styled(Div, "alert", visible=False, html_attributes={"role": "alert"}, render_as_text=True)
        self._news = styled(Div, "news", visible=False, html_attributes=polite, render_as_text=True)
        self._stop = styled(Button, "stop", label="Stop the fit", visible=False)
        self._name = styled(Div, "name", html_attributes=polite)
        self._panels = styled(Div, "panels")
        self._quality = styled(Div, "quality", html_attributes=polite)
        self._numbers = styled(Div, "numbers")
        self._k = styled(Slider, "k", start=0, end=1, value=0, step=1, title="components k", visible=False)
        self._sample = styled(Spinner, "sample", low=0, high=max(n - 1, 0), value=0, step=1, title="sample")
        self._plane = styled(
            Slider, "slice", start=0, end=max(planes - 1, 1), value=explorer.middle, step=1, title="slice"
        )
        self._projected = styled(Checkbox, "projection", label="maximum projection", active=False)
        paired = explorer.originals is not None
        self._compare = choice("compare", "compare", markup.COMPARISONS, visible=paired, disabled=True)
        self._split = styled(Slider, "split", start=0, end=100, value=50, step=1, title="split", visible=False)
        self._actual = styled(Checkbox, "actual", label="100 %", active=False)
        self._channel = choice("channel", "channel", _channels(facts), visible=len(_channels(facts)) > 1)
        self._contrast = choice("contrast", "contrast", CONTRASTS)
        self._limits = styled(TextInput, "limits", title="black, white", visible=False)
        self._colors = choice("colors", "colors", COLORS, visible=facts is not None and facts.is_gray)
        in_model = {"role": "group", "aria-label": "mean and eigenimages"}
        self._eigen = styled(Div, "eigenimages", classes=("eigen",), html_attributes=in_model)
        self._more = styled(Button, "more", label="More eigenimages", visible=False)
        self._description = styled(Div, "model", render_as_text=True)
        self._curve, self._mark = (ColumnDataSource({"k": [], "share": []}) for _ in range(2))
        self._chart = variance_chart(self._curve, self._mark)
        for widget, changed, do in (
            (self._k, "value", self._show_sample),
            (self._sample, "value", self._show_sample),
            (self._plane, "value", self._show_plane),
            (self._projected, "active", self._show_plane),
            (self._compare, "value", self._show_sample),
            (self._actual, "active", self._show_sample),
            (self._channel, "value", self._choose_channel),
            (self._contrast, "value", self._choose_contrast),
            (self._limits, "value", self._recolor),
            (self._colors, "value", self._recolor),
        ):
            widget.on_change(changed, lambda attr, old, new, do=do: do())
        self._stop.on_click(lambda: explorer.stop_fit())
        self._more.on_click(self._show_more)
        samples = [self._name, self._panels, self._sample, self._k, self._compare, self._split, self._actual]
        samples += [self._channel] if self._channel.visible else []
        samples += [self._contrast, self._limits, self._colors]
        samples += [self._plane, self._projected] if planes > 1 else []
        samples += [self._quality, self._numbers, *self._gallery.widgets]
        model = [self._description, self._eigen, self._more, self._chart]
        for widget in [self._alert, self._news, self._stop, *(samples if n else []), *model]:
            self._document.add_root(widget)
        self._document.title = "dpca explore" if facts is None else f"{printable(facts.path)} - dpca explore"

    # -- what is shown

    @property
    def _slice(self) -> int | None:
        return None if self._projected.active else whole(self._plane.value)

    def _asked_contrast(self) -> Contrast:
        """Return the chosen contrast; raise DataError for limits that are not two numbers."""
        channel = int(self._channel.value) if self._channel.value.isdecimal() else None
        if self._contrast.value == "limits":
            return Contrast.with_limits(self._limits.value, self._colors.value, channel)
        return Contrast(self._contrast.value, colors=self._colors.value, channel=channel)

    def _show_sample(self) -> None:
        explorer, facts, n = self._explorer, self._explorer.facts, self._n
        if facts is None or not n:
            return
        index, k, plane = min(whole(self._sample.value), n - 1), whole(self._k.value), self._slice
        self._gallery.follow(index)
        try:
            contrast = self._asked_contrast()
        except DataError as error:
            self._show_error(error)
            return
        compare, actual = self._compare.value, bool(self._actual.active)
        set_busy(self._panels)
        if explorer.originals is None and not explorer.n_components:
            return  # the model that decodes the samples is being loaded

        def work() -> Callable[[], None]:
            view = explorer.view(index, k, plane, contrast, FULL if actual else LONGEST)
            name, panels = markup.title(view), markup.triplet(view, contrast.colors, compare, actual=actual)
            sizes, waiting = markup.sizes(view, facts.sample_bytes), view.difference is not None

            def show() -> None:
                say(
                    self._alert, ""
                )  # first, because each change is sent by itself and an error is of the sample before
                self._name.text, self._panels.text, self._numbers.text = name, panels, sizes
                self._bounds, self._compare.disabled = view.bounds, not waiting
                self._split.visible = waiting and compare == "split"
                set_busy(self._panels, busy=False)
                if waiting:
                    self._measure(index, k)

            return show

        self._tasks.do("sample", work, self._show_error)
        self._mark_share()

    def _measure(self, index: int, k: int) -> None:
        """Show the quality of a sample. There is one computation at a time, and only the latest one waits."""
        facts, explorer = self._explorer.facts, self._explorer
        assert facts is not None
        asked = self._asked = index, k
        set_busy(self._quality)
        self._quality.text = markup.quality(dict.fromkeys(self._measured))

        def work() -> Callable[[], None]:
            numbers = explorer.measure(index, k)
            found = explorer.found_range if numbers and facts.data_range is None else None

            def show() -> None:
                if self._asked == asked:
                    self._measured, self._quality.text = tuple(numbers), markup.quality(numbers, found)
                    set_busy(self._quality, busy=False)

            return show

        self._measuring.do("quality", work, self._show_error)

    def _show_model(self) -> None:
        version, plane = self._explorer.version, self._slice
        new = (version, plane) != self._drawn
        first, text = (0, "") if new else (self._count, self._eigen.text)
        count = max(EIGENIMAGES, self._count) if new else self._count + EIGENIMAGES
        set_busy(self._eigen)

        def work() -> Callable[[], None]:
            shown = self._explorer.components(count, plane, first)
            more = "" if shown is None else markup.eigenimages(shown)
            orders = self._explorer.orders

            def show() -> None:
                self._gallery.offer(orders)
                set_busy(self._eigen, busy=False)
                if shown is None:
                    return
                self._drawn, self._count = (version, plane), first + len(shown.images)
                self._eigen.text, self._description.text = text + more, shown.description
                self._more.visible = len(shown.images) == count - first
                self._curve.data = {"k": list(range(1, len(shown.explained) + 1)), "share": shown.explained.tolist()}
                self._chart.visible = len(shown.explained) > 0
                self._mark_share()

            return show

        self._seen = version
        self._tasks.do("model", work, self._show_error)

    def _mark_share(self) -> None:
        share, k = self._curve.data["share"], whole(self._k.value)
        self._mark.data = {"k": [k], "share": [share[k - 1]]} if 1 <= k <= len(share) else {"k": [], "share": []}

    def _poll(self) -> None:
        explorer = self._explorer
        say(self._news, explorer.news or explorer.progress)
        self._stop.visible = explorer.fitting
        if explorer.version == self._seen:
            return
        if (k := explorer.n_components) and self._k.end != max(k, 2):
            last = self._k.value == self._k.end or self._k.start == 0  # the slider stays at its end when k grows
            self._k.update(start=1, end=max(k, 2), value=k if last else min(whole(self._k.value), k), disabled=k == 1)
            self._k.visible = True
        self._show_model()
        if explorer.facts is not None:
            self._show_sample()
            if explorer.originals is None and not self._gallery.has_thumbnails:
                self._gallery.show()

    # -- what is asked for

    def _choose(self, index: int) -> None:
        self._sample.value = index

    def _show_plane(self) -> None:
        self._show_sample()
        self._show_model()

    def _show_more(self) -> None:
        if (self._explorer.version, self._slice) == self._drawn and not self._tasks.waits("model"):
            self._show_model()

    def _choose_channel(self) -> None:
        facts = self._explorer.facts
        assert facts is not None
        self._colors.visible = facts.is_gray or self._channel.value != _EVERY
        self._recolor()

    def _choose_contrast(self) -> None:
        limits = self._contrast.value == "limits"
        self._limits.visible = limits
        if limits:  # the change of the text draws the pictures
            self._limits.value = ", ".join(markup.bounds_text(self._bounds))
        self._recolor()

    def _recolor(self) -> None:
        self._show_sample()
        try:
            self._gallery.show(self._asked_contrast())
        except DataError as error:
            self._show_error(error)

    def _show_error(self, error: Exception) -> None:
        say(self._alert, error_text(error))
        for widget in (self._panels, self._quality, self._eigen):
            set_busy(widget, busy=False)


def _channels(facts: SourceFacts | None) -> dict[str, str]:
    """Return the choices of channels, name to label."""
    names = () if facts is None else facts.channel_names
    return {_EVERY: "all"} | {str(number): printable(name) for number, name in enumerate(names)}
