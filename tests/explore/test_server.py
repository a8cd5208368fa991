"""Access to the page: with the token only, and not from pages of other sites."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpca.explore.opening import open_explorer
from dpca.explore.server import PageServer
from dpca.storage.errors import StoreError

ASKED = ["/", "/ready", "/own/page.js", "/static/js/bokeh.min.js", "/app/autoload.js?bokeh-autoload-element=page"]
#: What names a place in the server: folders of its code, of its interpreter, and how tracebacks begin.
PLACES = re.compile(r"Traceback|File \"|\.py\b|site-packages|/dpca/|/lib/")
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "eA=="}


def answer(server: PageServer, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def known(server: PageServer) -> dict[str, str]:
    """Return the header of a visitor who has shown the token."""
    return {"Cookie": f"{server.cookie}={server.token}"}


def test_pages_of_others_get_nothing(stores: Path, served: Callable[..., PageServer]) -> None:
    server = served(open_explorer(str(stores / "stack.zarr")))
    here, elsewhere, visitor = f"127.0.0.1:{server.port}", f"evil.example:{server.port}", known(server)
    for path in ASKED:
        status, headers, _ = answer(server, path, visitor)
        assert status == 200
        if "/app/" not in path:
            assert "script-src 'self';" in headers["Content-Security-Policy"]
            assert "default-src 'none'" in headers["Content-Security-Policy"]
        for wrong in (
            {"Host": here, "Origin": f"http://{elsewhere}"},
            {"Host": here, "Origin": "null"},
            {"Host": here, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        ):
            assert answer(server, path, visitor | wrong)[0] == 403, (path, wrong)
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert answer(server, "/", visitor | link)[0] == 200
    wrong = {**UPGRADE, "Host": here, "Origin": f"http://{elsewhere}"}
    assert answer(server, "/app/ws", visitor | wrong)[0] == 403
    for path in (
        "/app",
        "/own/../server.py",
        "/own/%2e%2e/server.py",
        "/own//etc/passwd",
        "/static/js/../bokeh.css",
        "/x",
    ):
        assert answer(server, path, visitor)[0] in (403, 404), path


def test_a_token_is_asked_for_everything_and_kept_in_a_cookie(stores: Path, served: Callable[..., PageServer]) -> None:
    server = served(open_explorer(str(stores / "stack.zarr")))
    token = server.token
    assert len(token) >= 32
    assert server.address == f"http://localhost:{server.port}/?token={token}"
    wrong_tokens = [token[:-1], token[:1], f"{token}x", token[1:], token.swapcase(), "", "wrong", "%ff"]
    for path in [*ASKED, "/app/ws", f"/ready?token={token}", *(f"/?token={wrong}" for wrong in wrong_tokens)]:
        assert answer(server, path)[0] == 403, path
    cookies = [f"{server.cookie}={wrong}" for wrong in [*wrong_tokens, "ä", f'"{token[:-1]}"']]
    for cookie in (*cookies, f"other={token}", f"{server.cookie}x={token}", token, "\x01;;="):
        for path in ("/", "/ready", "/app/ws"):
            status = answer(server, path, {"Cookie": cookie.encode().decode("latin-1")})[0]
            assert status in (400, 403), (path, cookie)
    status, headers, _ = answer(server, f"/?token={token}")
    assert (status, headers["Location"]) == (302, "/")
    assert headers["Referrer-Policy"] == "no-referrer"
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    for path in ASKED:
        status, _, text = answer(server, path, {"Cookie": cookie.split(";")[0]})
        assert status == 200
        assert token not in text


def test_every_server_has_a_token_of_its_own_and_a_taken_port_is_a_sentence() -> None:
    server = PageServer("a", host="127.0.0.1", port=0)
    with pytest.raises(StoreError, match="--port"):
        PageServer("a", host="127.0.0.1", port=server.port)
    other = PageServer("a", host="127.0.0.1", port=0)
    assert other.token != server.token
    server.stop()
    other.stop()


ODD_REQUESTS = [
    b"nonsense\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999999999\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Type: multipart/form-data\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
]
#: Of a visitor who has the token.
ODD_PAGES = [
    "/app/autoload.js",
    "/app/autoload.js?bokeh-autoload-element=%ff",
    "/app/autoload.js?bokeh-autoload-element=page&bokeh-session-id=%00&bokeh-absolute-url=//x",
    "/app/autoload.js?bokeh-autoload-element=page&bokeh-app-path=%0d%0a",
    "/app/ws",
    "/app/ws/more",
    "/app/autoload.js/more",
    "/own/%00",
    "/own/" + "x" * 5000,
    "/own/page.js?v=%ff",
    "/?token=%ff&token=x",
    "/static/js/bokeh.min.js/../../x",
]


def test_odd_requests_get_no_path_of_the_server(
    stores: Path, served: Callable[..., PageServer], capfd: pytest.CaptureFixture[str]
) -> None:
    server = served(open_explorer(str(stores / "stack.zarr")))
    assert answer(server, "/ready", known(server))[0] == 200
    for request in ODD_REQUESTS:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as end:
            end.sendall(request)
            end.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda end=end: end.recv(2**16), b""))  # type: ignore[misc]
        assert said == b"" or said.startswith((b"HTTP/1.1 40", b"HTTP/1.1 41")), request
        assert not PLACES.search(said.decode("latin-1")), said
    for page in ODD_PAGES:
        status, _, said = answer(server, page, known(server))
        assert status == 200 or not PLACES.search(said), said
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "NONE"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request(method, "/", headers=known(server))
        assert connection.getresponse().status == 405
        connection.close()
    assert not PLACES.search(capfd.readouterr().err)
