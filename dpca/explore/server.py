"""Serves the page with a token, as Jupyter does, because other users of the machine can reach its port.

The front of the page, with the first picture, is served before Bokeh is imported, because that takes longer than
reading a sample. The script of the front requests the rest when it is ready.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.routing import Router
from tornado.web import Application, RequestHandler, StaticFileHandler

from dpca.plots.html import template
from dpca.storage.errors import StoreError

STATIC = Path(__file__).with_name("static")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Inline styles are allowed for Bokeh. Scripts come from files of this server, and nothing comes from elsewhere.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# Seconds for open requests to end.
_END = 2.0
_BEHIND = ("/app/ws", "/app/autoload.js")


class PageServer:
    """A server in its own thread.

    Parameters
    ----------
    title : str
        Title of the page.
    host : str
        Address or name to listen at.
    port : int
        Port to listen at; 0 for a free one.

    Attributes
    ----------
    token : str
        The secret that a request must contain.

    Raises
    ------
    StoreError
        If the address or the port is not available.
    """

    def __init__(self, title: str, *, host: str, port: int) -> None:
        self.title, self.host, self.token = title, host, secrets.token_urlsafe(32)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except (OSError, UnicodeError, OverflowError) as error:
            raise StoreError(
                f"the page cannot be served at {host}, port {port} ({error}): give another --port or --host"
            ) from error
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        self.behind: Any = None
        self._loop = asyncio.new_event_loop()
        #: Set when the page is mounted.
        self.ready = asyncio.Event()
        #: The HTML of the first picture.
        self.first: asyncio.Future[str] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="page-server", daemon=True)

    @property
    def address(self) -> str:
        """The URL of the page, with the token."""
        name = "localhost" if self.host in _LOOPBACK else self.host
        name = socket.gethostname() if name in ("0.0.0.0", "::", "") else name
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """Name of the cookie with the token. It contains the port, because the ports of a host share cookies."""
        return f"dpca-explore-{self.port}"

    def start(self) -> None:
        """Start to serve the front."""
        self._thread.start()

    def show(self, first: str) -> None:
        """Put the HTML of the first picture into the front, which waits for it."""
        self._loop.call_soon_threadsafe(self.first.set_result, first)

    def mount(self, build: Callable[[Any], Any]) -> None:
        """Serve the page that ``build`` lays out in a Bokeh document, for each visitor. Imports Bokeh (a second)."""
        from bokeh.application import Application as Documents
        from bokeh.application.handlers.function import FunctionHandler
        from bokeh.server.tornado import BokehTornado
        from tornado.ioloop import IOLoop

        from dpca.explore.sockets import Socket

        # These loggers print a traceback for every invalid message; `Socket` logs one line instead.
        for name in ("bokeh", "tornado.application"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

        def begin() -> None:
            behind = BokehTornado(
                {"/app": Documents(FunctionHandler(build))},
                extra_websocket_origins=["*"],  # `AccessRouter` has already compared the origin with the host
                include_headers=[],
                include_cookies=[],  # sessions would show them to the page, including the token
                use_index=False,
            )
            behind.add_handlers(".*", [("/app/ws", Socket, Socket.given(behind, "/app"))])
            behind.initialize(IOLoop.current())
            behind.start()
            self.behind = behind
            self.ready.set()

        self._loop.call_soon_threadsafe(begin)

    def stop(self) -> None:
        """Stop the server."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_END)
        else:
            self._loop.close()
        self._socket.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def listen() -> HTTPServer:
            server = HTTPServer(AccessRouter(self))
            server.add_socket(self._socket)
            return server

        async def close() -> None:
            server.stop()
            if self.behind is not None:
                self.behind.stop(wait=False)
            await server.close_all_connections()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        server = self._loop.run_until_complete(listen())
        self._loop.run_forever()
        self._loop.run_until_complete(close())
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


class AccessRouter(Router):
    """Admits or refuses every request, including websockets.

    Parameters
    ----------
    server : PageServer
    """

    def __init__(self, server: PageServer) -> None:
        self._server = server
        given = {"server": server}
        outside = {"status": 403, "text": "access requires a token: open the address that 'dpca explore' printed"}
        self._front = _silent(
            (r"/", _Front, given),
            (r"/ready", _Ready, given),
            (r"/own/(.*)", _File, {"path": str(STATIC)}),
            (r"/static/js/(bokeh[a-z-]*\.min\.js)", _File, {"path": _scripts()}),
            (r".*", _Refusal, {"status": 404, "text": "not found"}),
        )
        self._outside = _silent((r".*", _Refusal, outside))

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        """Return the handler of a request."""
        if not self._admits(request):
            return self._outside.find_handler(request, **options)
        if self._server.behind is not None and request.path.startswith(_BEHIND):
            return self._server.behind.find_handler(request, **options)
        return self._front.find_handler(request, **options)

    def _admits(self, request: HTTPServerRequest) -> bool:
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin.lower()).netloc != request.headers.get("Host", "").lower():
            return False
        elsewhere = request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        if elsewhere and (request.path != "/" or request.headers.get("Sec-Fetch-Mode") != "navigate"):
            return False
        return _shown(request, self._server) is not None


def _scripts() -> str:
    """Return the folder of Bokeh's scripts, without importing it."""
    spec = find_spec("bokeh")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "server" / "static" / "js")


def _shown(request: HTTPServerRequest, server: PageServer) -> str | None:
    """Return the place of the token in a request, "url" or "cookie"; None without a valid token."""
    expected = server.token.encode()
    in_url = request.query_arguments.get("token", [])
    if request.path == "/" and any(hmac.compare_digest(value, expected) for value in in_url):
        return "url"
    try:
        kept = request.cookies.get(server.cookie)
    except Exception:  # cookies of other programs may be malformed
        kept = None
    if kept is not None and hmac.compare_digest(kept.value.encode(), expected):
        return "cookie"
    return None


def _silent(*handlers: Any) -> Application:
    """Return an application that logs no requests."""
    return Application(list(handlers), log_function=lambda _: None)


class _Handler(RequestHandler):
    def set_default_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.set_header(name, value)


class _OfServer(_Handler):
    def initialize(self, server: PageServer) -> None:
        self.server = server


class _Front(_OfServer):
    async def get(self) -> None:
        server = self.server
        if _shown(self.request, server) == "url":
            self.set_cookie(server.cookie, server.token, httponly=True, samesite="Lax", path="/")
            self.redirect("/")
            return
        first = await asyncio.shield(server.first)
        self.write(template(__file__, "front.html").render(title=server.title, first=first))


class _Ready(_OfServer):
    async def get(self) -> None:
        await self.server.ready.wait()
        self.write("ready")


class _File(_Handler, StaticFileHandler):
    pass


class _Refusal(_Handler):
    def initialize(self, status: int, text: str) -> None:
        self.status, self.text = status, text

    def prepare(self) -> None:
        self.set_status(self.status)
        self.set_header("Content-Type", "text/plain")
        self.finish(self.text)
