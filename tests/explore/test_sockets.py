"""Invalid messages: replies contain no path of the server, and the server keeps working."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from dpca.explore.opening import open_explorer
from dpca.explore.server import PageServer
from tests.explore.test_server import PLACES, answer, known


class Visitor:
    """One connection, by Bokeh's protocol."""

    def __init__(self, server: PageServer) -> None:
        self._server = server
        self._socket: WebSocketClientConnection | None = None
        self._sent = 0

    async def open(self) -> None:
        """Open a page."""
        status, _, script = answer(self._server, "/app/autoload.js?bokeh-autoload-element=page", known(self._server))
        found = re.search(r'"token":"([^"]+)"', script)
        assert found is not None, f"the page answers with {status}: {script[:200]}"
        await self.connect(["bokeh", found[1]])
        assert await self._answer() is not None

    async def connect(self, protocols: Sequence[str]) -> None:
        """Begin a connection."""
        url = f"ws://localhost:{self._server.port}/app/ws"
        asked = HTTPRequest(url, headers=known(self._server))
        self._socket = await websocket_connect(asked, subprotocols=list(protocols))
        assert self._socket.protocol is not None
        self._socket.protocol.set_nodelay(True)

    async def ask(self, kind: Any, content: Any) -> dict[str, Any] | None:
        """Send a message; return the content of the reply to it, None where the connection ended instead."""
        self._sent += 1
        header = {"msgid": str(self._sent), "msgtype": kind}
        return await self.send([json.dumps(part) for part in (header, {}, content)])

    async def send(self, fragments: Sequence[str | bytes]) -> dict[str, Any] | None:
        """Send fragments as they are; return the content of the reply, None where the connection ended instead."""
        if self._socket is None:
            await self.open()
        for fragment in fragments:
            await self._socket.write_message(fragment, isinstance(fragment, bytes))
        while (reply := await self._answer()) is not None and "reqid" not in reply[0]:
            pass  # the page sends its changes
        if reply is None:
            self.end()
            return None
        return reply[1]

    def end(self) -> None:
        """Record the end of the connection, and its reason."""
        assert self._socket is not None
        assert not PLACES.search(str(self._socket.close_reason))
        self._socket.close()
        self._socket = None

    async def _answer(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        parts: list[Any] = []
        while len(parts) < 3:
            if (part := await self.read()) is None:
                return None
            parts.append(part)
        header, _, content = parts
        return json.loads(header), json.loads(content)

    async def read(self) -> Any:
        """Return the next fragment, None where the connection has ended."""
        assert self._socket is not None
        return await asyncio.wait_for(self._socket.read_message(), 20)


def changed(model: str, attribute: str, new: Any) -> dict[str, Any]:
    event = {"kind": "ModelChanged", "model": {"id": model}, "attr": attribute, "new": new}
    return {"events": [event]}


def odd_contents(widgets: dict[str, str]) -> list[Any]:
    """Return contents of PATCH-DOC that no page sends."""
    values: list[Any] = [{"type": "number", "value": value} for value in ("nan", "+inf", "-inf", "much")]
    values += [10**400, -1, -(2**63), 1e308, 0.5, "5", None, True, [1], {"id": "p0"}, {"type": "map"}]
    values += [
        {"type": "ndarray", "array": {"type": "bytes", "data": "!"}, "shape": [-1], "dtype": "int32", "order": "little"}
    ]
    values += [{"type": "object", "name": "os.system"}, {"type": "bytes", "data": 5}, json.loads("[" * 400 + "]" * 400)]
    found = [changed(widgets[name], "value", value) for name in ("sample", "k") for value in values]
    found += [changed(model, "value", 1) for model in ("none", "", 5, None, [])]  # type: ignore[arg-type]
    found += [changed(widgets["sample"], attribute, 1) for attribute in ("none", "__class__", "", 5)]  # type: ignore[arg-type]
    for event in (
        5,
        None,
        [],
        {},
        {"kind": "None"},
        {"kind": []},
        {"kind": "ModelChanged"},
        {"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": 5},
        {"kind": "MessageSent", "msg_type": "none", "msg_data": 5},
        {"kind": "RootAdded", "model": 5},
        {"kind": "RootRemoved", "model": {"id": "none"}},
        {"kind": "TitleChanged", "title": 5},
        {"kind": "ColumnsStreamed", "model": {"id": widgets["sample"]}, "data": 5},
    ):
        found.append({"events": [event]})
    return [*found, 5, [], {}, {"events": 5}, {"events": {}}, "text"]


ODD_MESSAGES: list[Sequence[str | bytes]] = [
    ["nonsense", "{}", "{}"],
    ["{}", "{}", "{}"],
    ["[]", "{}", "{}"],
    ["null", "null", "null"],
    ['{"msgid": "1"}', "{}", "{}"],
    ['{"msgid": "1", "msgtype": "NONE"}', "{}", "{}"],
    ['{"msgid": "1", "msgtype": 5}', "{}", "{}"],
    ['{"msgid": "1", "msgtype": []}', "{}", "{}"],
    ['{"msgid": "1", "msgtype": "ACK"}', "{}", "{}"],
    ['{"msgid": "1", "msgtype": "PATCH-DOC"}', "{}", "[" * 100_000],
    ['{"msgid": "1", "msgtype": "PATCH-DOC", "num_buffers": 1}', "{}", "{}", "[]", b""],
    ['{"msgid": "1", "msgtype": "PATCH-DOC", "num_buffers": 1}', "{}", "{}", '{"id": 5}', "text"],
    ['{"msgid": "1", "msgtype": "PUSH-DOC"}', "{}", "{}"],
    ['{"msgid": "1", "msgtype": "PUSH-DOC"}', "{}", '{"doc": {"roots": 5}}'],
    [b"\x00\xff"],
    ["\ud7ff" * 1000, "{}", "{}"],
]


async def _visit(server: PageServer) -> None:
    visitor = Visitor(server)
    page = await visitor.ask("PULL-DOC-REQ", {})
    assert page is not None
    widgets = {root["attributes"].get("name"): root["id"] for root in page["doc"]["roots"]}
    for content in odd_contents(widgets):
        reply = await visitor.ask("PATCH-DOC", content)
        assert not PLACES.search(json.dumps(reply)), content
    for fragments in ODD_MESSAGES:
        reply = await visitor.send(fragments)
        assert not PLACES.search(json.dumps(reply)), fragments
    for protocols in (["bokeh"], ["bokeh", "none"], ["bokeh", "e30.e30"], ["other", "x"]):
        await visitor.connect(protocols)
        assert await visitor.read() is None
        visitor.end()


@pytest.mark.browser
def test_messages_that_no_page_sends(
    stores: Path,
    served: Callable[..., PageServer],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = served(open_explorer(str(stores / "stack.zarr"), model=str(stores / "model.zarr")))
    with caplog.at_level(logging.INFO):
        asyncio.run(_visit(server))
        assert answer(server, "/", known(server))[0] == 200
    assert len(caplog.messages) > 50
    for record in caplog.records:
        assert record.name == "dpca.explore.sockets"
        assert record.exc_info is None
        assert "\n" not in record.getMessage()
    assert not PLACES.search(capfd.readouterr().err)
