"""The connection of a page that is open, by Bokeh's protocol."""

from __future__ import annotations

import logging
from typing import Any

from bokeh.server.tornado import BokehTornado
from bokeh.server.views.ws import WSHandler

from dpca.storage.errors import printable

_LOG = logging.getLogger(__name__)
# All that a visitor is told of a message that makes no sense.
_REFUSED = "the server cannot use this message"
_LONGEST = 200


class Socket(WSHandler):
    """Answers messages as Bokeh does, but never with a traceback, which holds paths of the server."""

    @staticmethod
    def given(server: BokehTornado, path: str) -> dict[str, Any]:
        """Return what Bokeh gives to a handler of one of its applications."""
        return {"application_context": server.applications[path], "bokeh_websocket_path": f"{path}/ws"}

    async def send_message(self, message: Any) -> None:
        """Send a message; of an error, only that there was one."""
        if message.msgtype == "ERROR":
            _tell(message.content["text"])
            message.content = {"text": _REFUSED, "traceback": None}
        await super().send_message(message)

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        """Tell of a connection that could not be begun."""
        _tell(str(error))

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        """End the connection; ``reason`` is told here only."""
        if reason is not None:
            _tell(reason)
        super().close(None if code is None else 1008, None if reason is None else _REFUSED)


def _tell(why: str) -> None:
    _LOG.warning("a message to the page was refused: %s", printable(" ".join(why[:_LONGEST].split())))
