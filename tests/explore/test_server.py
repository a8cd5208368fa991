"""Who is let in: this machine's own pages, and elsewhere whoever has the token."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpca.explore.opening import open_explorer
from dpca.explore.server import PageServer
from dpca.storage.errors import DataError, StoreError

ASKED = ["/", "/ready", "/own/page.js", "/static/js/bokeh.min.js", "/app/autoload.js?bokeh-autoload-element=page"]
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "eA=="}


def answer(server: PageServer, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def test_pages_of_others_get_nothing(stores: Path, served: Callable[..., PageServer]) -> None:
    server = served(open_explorer(str(stores / "stack.zarr")))
    here, elsewhere = f"127.0.0.1:{server.port}", f"evil.example:{server.port}"
    for path in ASKED:
        status, headers, _ = answer(server, path)
        assert status == 200
        if "/app/" not in path:
            assert "script-src 'self';" in headers["Content-Security-Policy"]
            assert "default-src 'none'" in headers["Content-Security-Policy"]
        for wrong in (
            {"Host": elsewhere},  # a name of theirs that leads here
            {"Host": here, "Origin": f"http://{elsewhere}"},
            {"Host": here, "Origin": "null"},
            {"Host": here, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        ):
            assert answer(server, path, wrong)[0] == 403, (path, wrong)
    assert answer(server, "/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0] == 200  # a link
    assert answer(server, "/app/ws", {**UPGRADE, "Host": elsewhere, "Origin": f"http://{elsewhere}"})[0] == 403
    assert answer(server, "/app/ws", {**UPGRADE, "Host": here, "Origin": f"http://{elsewhere}"})[0] == 403
    for path in (
        "/app",
        "/own/../style.py",
        "/own/%2e%2e/style.py",
        "/own//etc/passwd",
        "/static/js/../bokeh.css",
        "/x",
    ):
        assert answer(server, path)[0] in (403, 404), path


def test_a_token_is_asked_for_everything_and_kept_in_a_cookie(stores: Path, served: Callable[..., PageServer]) -> None:
    server = served(open_explorer(str(stores / "stack.zarr")), token="secret-token")
    assert server.address.endswith("/?token=secret-token")
    for path in [*ASKED, "/app/ws", "/?token=", "/?token=secret-toke", "/?token=%ff", "/ready?token=secret-token"]:
        assert answer(server, path)[0] == 403, path
    for cookie in (
        f"{server.cookie}=wrong",
        "other=secret-token",
        f"{server.cookie}=",
        "\x01;;=",
        f"{server.cookie}=ä",
    ):
        assert answer(server, "/", {"Cookie": cookie.encode().decode("latin-1")})[0] in (400, 403)
    status, headers, text = answer(server, "/?token=secret-token")
    assert (status, headers["Location"]) == (302, "/")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    for path in ASKED:
        status, _, text = answer(server, path, {"Cookie": cookie.split(";")[0]})
        assert status == 200
        assert "secret-token" not in text
    wrong = {**UPGRADE, "Origin": "http://evil.example", "Cookie": cookie.split(";")[0]}
    assert answer(server, "/app/ws", wrong)[0] == 403


def test_other_machines_take_a_token_and_a_taken_port_is_a_sentence() -> None:
    with pytest.raises(DataError, match="a token is needed"):
        PageServer("a", host="0.0.0.0", port=0, token=None)
    server = PageServer("a", host="127.0.0.1", port=0, token=None)
    with pytest.raises(StoreError, match="give another --port"):
        PageServer("a", host="127.0.0.1", port=server.port, token=None)
    server.stop()
