"""Serves the page to those who have its token, as Jupyter does: other users of the machine reach its port, too.

The front of the page, with the first picture in it, is served before Bokeh is imported, which takes longer than to read
a sample; the script of the front asks for the rest when it is there.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import socket
import threading
from collections.abc import Callable
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.routing import Router
from tornado.web import Application, RequestHandler, StaticFileHandler

from dpca.explore.style import STATIC
from dpca.storage.errors import StoreError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Bokeh sets styles of elements; scripts come from files of this server, and nothing at all from elsewhere.
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
# Seconds in which what is being answered may end.
_END = 2.0
_BEHIND = ("/app/ws", "/app/autoload.js")


class PageServer:
    """A server in a thread of its own.

    Parameters
    ----------
    title : str
        Of the page.
    host : str
        Address or name to listen at.
    port : int
        0 for a free one.

    Attributes
    ----------
    token : str
        What a visitor must show.

    Raises
    ------
    StoreError
        If it cannot listen there.
    """

    def __init__(self, title: str, *, host: str, port: int) -> None:
        self.title, self.host, self.token = title, host, secrets.token_urlsafe(32)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except (OSError, UnicodeError, OverflowError) as error:
            raise StoreError(
                f"nothing can be served at {host}, port {port} ({error}): give another --port or --host"
            ) from error
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        self.behind: Any = None
        self._loop = asyncio.new_event_loop()
        self._ready = asyncio.Event()
        self._first: asyncio.Future[str] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="page-server", daemon=True)

    @property
    def address(self) -> str:
        """Where a visitor of this machine finds the page, with the token."""
        name = "localhost" if self.host in _LOOPBACK else self.host
        name = socket.gethostname() if name in ("0.0.0.0", "::", "") else name
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """Name under which a visitor keeps the token: browsers keep cookies of all ports of a machine together."""
        return f"dpca-explore-{self.port}"

    def start(self) -> None:
        """Begin to serve the front."""
        self._thread.start()

    def show(self, first: str) -> None:
        """Put the first picture, HTML, into the front, which waits for it."""
        self._loop.call_soon_threadsafe(self._first.set_result, first)

    def mount(self, build: Callable[[Any], None]) -> None:
        """Serve what ``build`` lays out in a document of Bokeh, for each visitor; imports Bokeh in a second."""
        from bokeh.application import Application as Documents
        from bokeh.application.handlers.function import FunctionHandler
        from bokeh.server.tornado import BokehTornado
        from tornado.ioloop import IOLoop

        from dpca.explore.sockets import Socket

        # They tell of every odd message with a traceback, and `Socket` in a sentence.
        for name in ("bokeh", "tornado.application"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

        def begin() -> None:
            behind = BokehTornado(
                {"/app": Documents(FunctionHandler(build))},
                extra_websocket_origins=["*"],  # `Door` has compared the origin with the host already
                include_headers=[],
                include_cookies=[],  # sessions state them to the page, and the token is among them
                use_index=False,
            )
            behind.add_handlers(".*", [("/app/ws", Socket, Socket.given(behind, "/app"))])
            behind.initialize(IOLoop.current())
            behind.start()
            self.behind = behind
            self._ready.set()

        self._loop.call_soon_threadsafe(begin)

    def stop(self) -> None:
        """Serve no more."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_END)
        else:
            self._loop.close()
        self._socket.close()

    async def ready(self) -> None:
        """Wait until all of the page is there."""
        await self._ready.wait()

    async def first(self) -> str:
        """Wait for the first picture."""
        return await asyncio.shield(self._first)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def listen() -> HTTPServer:
            server = HTTPServer(Door(self))
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


class Door(Router):
    """Lets a request in or refuses it, whatever it asks for, websockets included.

    Parameters
    ----------
    server : PageServer
    """

    def __init__(self, server: PageServer) -> None:
        self._server = server
        given = {"server": server}
        self._front = Application(
            [
                (r"/", _Front, given),
                (r"/ready", _Ready, given),
                (r"/own/(.*)", _File, {"path": str(STATIC)}),
                (r"/static/js/(bokeh[a-z-]*\.min\.js)", _File, {"path": _scripts()}),
                (r".*", _Missing),
            ],
            log_function=lambda _: None,
        )
        self._outside = Application([(r".*", _Outside, given)], log_function=lambda _: None)

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        """Return what answers a request."""
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
    """Return how a request shows the token, None where it does not."""
    expected = server.token.encode()
    in_url = request.query_arguments.get("token", [])
    if request.path == "/" and any(hmac.compare_digest(value, expected) for value in in_url):
        return "url"
    try:
        kept = request.cookies.get(server.cookie)
    except Exception:  # cookies of others may be none
        kept = None
    if kept is not None and hmac.compare_digest(kept.value.encode(), expected):
        return "cookie"
    return None


class _Handler(RequestHandler):
    def initialize(self, server: PageServer) -> None:
        self.server = server

    def set_default_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.set_header(name, value)


class _Front(_Handler):
    async def get(self) -> None:
        server = self.server
        if _shown(self.request, server) == "url":
            self.set_cookie(server.cookie, server.token, httponly=True, samesite="Lax", path="/")
            self.redirect("/")
            return
        first = await server.first()
        text = (STATIC / "front.html").read_text()
        filled = {"title": escape(server.title), "first": first}
        self.write(re.sub(r"\{\{(title|first)\}\}", lambda found: filled[found[1]], text))


class _Ready(_Handler):
    async def get(self) -> None:
        await self.server.ready()
        self.write("ready")


class _File(StaticFileHandler):
    def set_extra_headers(self, path: str) -> None:
        for name, value in _HEADERS.items():
            self.set_header(name, value)


class _Missing(RequestHandler):
    def prepare(self) -> None:
        self.set_status(404)
        self.finish("there is nothing here")


class _Outside(_Handler):
    def prepare(self) -> None:
        self.set_status(403)
        self.set_header("Content-Type", "text/plain")
        self.finish("this page is for those who started it: open the address that 'dpca explore' printed")
