"""An S3 server for tests, moto's, and a proxy before it that fails now and then."""

from __future__ import annotations

import http.client
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dpca.storage.remote.objects import ObjectPath, place_of

#: What a client needs to be let in.
KEYS = {"key": "an-access-key", "secret": "a-secret-key"}
BUCKETS = ("bucket", "faulty")
#: What the proxy does instead of passing a request on, or to the answer.
FAULTS = ("503", "500", "429", "reset", "slow", "cut upload", "cut answer")
_SLOW = 0.3


def options_at(address: str) -> dict[str, Any]:
    """Return the options with which a server at an address is reached."""
    return {**KEYS, "endpoint_url": address, "client_kwargs": {"region_name": "us-east-1"}}


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server with empty `BUCKETS` on this machine; gives its address."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # which prints a line a request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        for bucket in BUCKETS:
            request(f"http://{host}:{port}", "PUT", f"/{bucket}")
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def request(address: str, method: str, path: str) -> bytes:
    """Ask a server without any library between."""
    there = urlsplit(address)
    connection = http.client.HTTPConnection(there.hostname or "", there.port)
    connection.request(method, path, headers={"Authorization": "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/s3/"})
    with connection.getresponse() as answer:
        content = answer.read()
    connection.close()
    return content


@contextmanager
def s3_in_another_process(share: float) -> Iterator[None]:
    """Run a server behind a proxy; this process and programs reach ``s3://bucket`` by their environment meanwhile."""
    command = [sys.executable, "-m", "tests.helpers.s3_server", str(share), "127.0.0.1"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        os.environ |= {
            "AWS_ACCESS_KEY_ID": KEYS["key"],
            "AWS_SECRET_ACCESS_KEY": KEYS["secret"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
        }
        try:
            yield
        finally:
            server.terminate()


def content(path: str | Path) -> dict[str, bytes]:
    """Return everything below a path, on a disk or in an object store."""
    place = place_of(path)
    if isinstance(place, ObjectPath):
        return {name: (place / name).read_bytes() for name in place.files()}
    return {str(file.relative_to(place)): file.read_bytes() for file in sorted(place.rglob("*")) if file.is_file()}


def upload(folder: Path, url: str) -> str:
    """Copy the files below a folder to a URL; return the URL."""
    for name, text in content(folder).items():
        (ObjectPath(url) / name).write_bytes(text)
    return url


class FaultyProxy:
    """Passes requests on to a server, all but a share of them, drawn from a seed.

    Attributes
    ----------
    address : str
    share : float
        Of the requests that fail.
    met : Counter
        How often each fault happened, and ``"passed"``.
    """

    def __init__(
        self, server: str, share: float = 0.05, faults: Sequence[str] = FAULTS, host: str = "127.0.0.1"
    ) -> None:
        self.share, self._faults, self.met = share, faults, Counter[str]()
        self._rng, self._lock, self._there = random.Random(0), threading.Lock(), urlsplit(server)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # header and body are sent apart: the body would wait 40 ms

            def handle_one_request(self) -> None:
                with suppress(OSError):
                    super().handle_one_request()
                    return
                self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _pass(self) -> None:
                proxy.serve(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server((host, 0), Handler)
        self.address = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve(self, client: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        with self._lock:
            fault = self._rng.choice(self._faults) if self._rng.random() < self.share else "passed"
            self.met[fault] += 1
        if client.headers.get("Expect", "").lower() == "100-continue":
            client.send_response_only(100)
            client.end_headers()
        length = int(client.headers.get("Content-Length") or 0)
        body = client.rfile.read(length // 2 if fault == "cut upload" else length)
        if fault in ("cut upload", "reset"):
            _reset(client)
            return
        if fault.isdigit():
            _answer(client, int(fault), {}, b"<Error><Code>%s</Code></Error>" % fault.encode())
            return
        try:
            status, headers, content = self._forward(client, body)
        except OSError:
            _reset(client)
            return
        if fault == "slow":
            threading.Event().wait(_SLOW)
        if fault == "cut answer" and len(content) > 1:
            _answer(client, status, headers, content, len(content) // 2)
            _reset(client)
        else:
            _answer(client, status, headers, content)

    def _forward(self, client: BaseHTTPRequestHandler, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        connection = http.client.HTTPConnection(self._there.hostname or "", self._there.port)
        headers = {
            name: value for name, value in client.headers.items() if name.lower() not in ("connection", "expect")
        }
        connection.request(client.command, client.path, body, headers)
        with connection.getresponse() as answer:
            content = answer.read()
            found = dict(answer.getheaders())
        connection.close()
        return answer.status, found, content


def _answer(
    client: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str], content: bytes, sent: int | None = None
) -> None:
    client.send_response_only(status)
    for name, value in headers.items():
        if name.lower() not in ("connection", "content-length", "transfer-encoding", "date", "server"):
            client.send_header(name, value)
    length = (
        headers.get("Content-Length") or headers.get("content-length") if client.command == "HEAD" else len(content)
    )
    client.send_header("Content-Length", str(length or 0))
    client.end_headers()
    if client.command != "HEAD":
        client.wfile.write(content[:sent])


def _reset(client: BaseHTTPRequestHandler) -> None:
    client.close_connection = True
    client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.connection.close()


if __name__ == "__main__":
    with s3_server() as plain, FaultyProxy(plain, float(sys.argv[1]), host=sys.argv[2]) as proxy:
        print(proxy.address, flush=True)
        while True:
            time.sleep(60)
