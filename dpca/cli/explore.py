"""``dpca explore``: shows a store on a local page."""

from __future__ import annotations

import argparse
import threading
from typing import TYPE_CHECKING

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
    opened = open_explorer(options.path, stack=options.stack, model=options.model, data_range=options.data_range)
    facts = opened.explorer.facts
    heading = options.path if facts is None else f"{options.path}: {facts.description}"
    server = PageServer(printable(heading), host=options.host, port=options.port)
    server.start()
    say(f"{server.address} shows '{options.path}' until you press Ctrl-C")
    fit = None
    try:
        server.show(_first(opened))
        with defer_signals():
            from dpca.explore.live import LiveFit
            from dpca.explore.page import ExplorerPage

        server.mount(lambda document: ExplorerPage(opened.explorer, document))
        watched = _loaded(opened)
        if opened.load is None:
            with defer_signals():
                import dpca.models  # noqa: F401  here, because signals are held back in this thread
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
    from dpca.explore.live import LiveModelStore

    if opened.load is None:
        return None
    watched = None if opened.watched is None else LiveModelStore(opened.watched, opened.load, opened.explorer)
    opened.explorer.progress = loading = "loading the model"
    with defer_signals():
        import dpca.models  # noqa: F401
    opened.load()
    if opened.explorer.progress == loading:
        opened.explorer.progress = ""
    return watched
