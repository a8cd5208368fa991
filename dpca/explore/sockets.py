"""The connection of an open page, by Bokeh's protocol."""

from __future__ import annotations

import logging
from typing import Any

from bokeh.server.tornado import BokehTornado
from bokeh.server.views.ws import WSHandler

from dpca.storage.errors import printable

_LOG = logging.getLogger(__name__)
# The only reply to an invalid message.
_REFUSED = "the server cannot use this message"
_LONGEST = 200


class Socket(WSHandler):
    """Answers messages as Bokeh does, but without tracebacks, because these contain paths of the server."""

    @staticmethod
    def given(server: BokehTornado, path: str) -> dict[str, Any]:
        """Return Bokeh's arguments for the handler of an application."""
        return {"application_context": server.applications[path], "bokeh_websocket_path": f"{path}/ws"}

    async def send_message(self, message: Any) -> None:
        """Send a message. The details of an error are logged and not sent."""
        if message.msgtype == "ERROR":
            _log(message.content["text"])
            message.content = {"text": _REFUSED, "traceback": None}
        await super().send_message(message)

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        """Log a failed connection."""
        _log(str(error))

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        """Close the connection. ``reason`` is logged and not sent."""
        if reason is not None:
            _log(reason)
        super().close(None if code is None else 1008, None if reason is None else _REFUSED)


def _log(why: str) -> None:
    _LOG.warning("invalid message to the page: %s", printable(" ".join(why[:_LONGEST].split())))
