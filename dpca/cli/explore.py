"""``dpca explore``: shows photographs, an array or a store on a local page."""

from __future__ import annotations

import argparse
import threading
from typing import TYPE_CHECKING

from dpca.cli.arguments import reading_options
from dpca.cli.running import say
from dpca.engine.folds.stopping import defer_signals
from dpca.explore.markup import alert, title, triplet
from dpca.explore.opening import Opened, open_explorer
from dpca.explore.server import PageServer
from dpca.explore.words import error_text
from dpca.storage.errors import printable

if TYPE_CHECKING:
    from dpca.explore.live import LiveModelStore

# Seconds between two readings of a model that another program may write, and seconds that a fit may take to end.
_CHECK, _END = 1.0, 2.0


def explore(options: argparse.Namespace) -> int:
    """Serve the page until the program is interrupted."""
    opened = open_explorer(
        options.source,
        stack=options.stack,
        model=options.model,
        key=options.key,
        axes=options.axes,
        reading=reading_options(options),
    )
    facts, shown = opened.explorer.facts, ", ".join(options.source)
    heading = shown if facts is None else f"{shown}: {facts.description}"
    server = PageServer(printable(heading), host=options.host, port=options.port)
    server.start()
    say(f"{server.address} shows '{shown}' until you press Ctrl-C")
    fit = None
    try:
        server.show(_first(opened))
        with defer_signals():
            from dpca.explore.page import ExplorerPage

        server.mount(lambda document: ExplorerPage(opened.explorer, document))
        watched = _loaded(opened)
        if opened.load is None:
            opened.explorer.progress = "preparing the fit"
            with defer_signals():
                import dpca.models  # noqa: F401  here, because signals are held back in this thread
                from dpca.explore.live import LiveFit

            fit = LiveFit(opened.explorer, options.components)
            fit.start()
        never = threading.Event()
        while not never.wait(_CHECK):
            if watched is not None:
                watched.check()
    finally:
        if fit is not None:
            fit.stop(_END)
        server.stop()
    return 0


def _first(opened: Opened) -> str:
    """Return HTML of the first sample, as far as it can be shown before there is a model."""
    explorer = opened.explorer
    if explorer.originals is None:
        return "<p>loading the model</p>"
    try:
        view = explorer.view(0, 1, explorer.middle)
        return title(view) + triplet(view)
    except Exception as error:  # reported on the page, which keeps working
        return alert(error_text(error))


def _loaded(opened: Opened) -> LiveModelStore | None:
    """Load the model. Return the object that reloads it, if it is a store of its own."""
    if opened.load is None:
        return None
    opened.explorer.progress = loading = "loading the model"
    with defer_signals():
        import dpca.models  # noqa: F401
        from dpca.explore.live import LiveModelStore

    watched = None if opened.watched is None else LiveModelStore(opened.watched, opened.load, opened.explorer)
    opened.load()
    if opened.explorer.progress == loading:
        opened.explorer.progress = ""
    return watched
