"""What another user of this machine can read and run of ours; prints one line for each thing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from distributed.comm.core import connect
from distributed.protocol.pickle import dumps
from distributed.security import Security

NOBODY = 65534
_PAGES = ("/", "/status", "/health", "/metrics", "/info/main/workers.html", "/json/identity.json", "/app/autoload.js")
_RUN = {"function": dumps(os.getuid), "args": dumps(()), "kwargs": dumps({}), "wait": True, "reply": True}


def listening() -> set[int | str]:
    """Return the ports and the names of the sockets at which this process and all that it started listen."""
    ours = psutil.Process()
    found = [c for p in (ours, *ours.children(recursive=True)) for c in p.net_connections("all")]
    ports = {c.laddr.port for c in found if c.status == psutil.CONN_LISTEN}
    return ports | {c.laddr for c in found if c.family == socket.AF_UNIX and c.laddr}


def command(at: set[int | str], folders: Sequence[Path]) -> list[str]:
    """Return the command that tries everything on ports and sockets, and on what lies in folders."""
    ports, sockets = (sorted(each for each in at if isinstance(each, kind)) for kind in (int, str))
    return [sys.executable, "-m", __name__, json.dumps([ports, sockets, [*map(str, folders)]])]


def _inside(folders: Sequence[str]) -> list[str]:
    """Return folders and all that lies in them. Folders of other tests may vanish meanwhile: they are passed over."""
    return [
        os.path.join(top, name)
        for folder in folders
        for top, below, files in os.walk(folder)
        for name in ("", *below, *files)
    ]


async def _ran(address: str, shown: ssl.SSLContext | None) -> str | None:
    """Return what a scheduler or worker did for somebody who connects, None if it did not let them in."""
    done = None
    for operation in ("run_function", "run"):
        try:
            comm = await connect(address, timeout=20, ssl_context=shown)
        except (OSError, ValueError):  # a server that speaks before the handshake does not encrypt
            return done
        done = f"{address} lets in"
        await comm.write({"op": operation, **_RUN})
        try:
            answer: Any = await comm.read()
        except OSError:
            continue
        if isinstance(answer, dict) and answer.get("status") == "OK":
            return f"{address} ran a function as uid {answer['result']}"
    return done


async def _status(port: int, page: str) -> int | None:
    """Return the status of a page that is asked for without a token, None where nobody speaks HTTP."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {page} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(2**16), 20)
    except OSError:
        return None
    finally:
        writer.close()
    return int(answer.split()[1]) if answer.startswith(b"HTTP/") else None


async def _reached(port: int, contexts: Sequence[ssl.SSLContext]) -> list[str | None]:
    """Return what can be read or run at a port."""
    pages = await asyncio.gather(*(_status(port, page) for page in _PAGES))
    if any(pages):
        answered = zip(_PAGES, pages, strict=True)
        return [f"http://localhost:{port}{page} is served" for page, status in answered if (status or 400) < 400]
    tries = [_ran(f"tcp://127.0.0.1:{port}", None), *(_ran(f"tls://127.0.0.1:{port}", each) for each in contexts)]
    return await asyncio.gather(*tries)


def _opened(path: str) -> str | None:
    """Return how a path can be read, None if it cannot."""
    try:
        if os.path.isdir(path):
            os.listdir(path)
        else:
            open(path, "rb").close()
    except OSError:
        pass
    else:
        return f"{path} can be read"
    with socket.socket(socket.AF_UNIX) as end:
        try:
            end.connect(path)
        except OSError:
            return None
    return f"{path} can be connected to"


async def _all(ports: Sequence[int], contexts: Sequence[ssl.SSLContext]) -> list[str | None]:
    return [found for port in ports for found in await _reached(port, contexts)]


def _contexts() -> list[ssl.SSLContext]:
    """Return ways to begin an encrypted connection: with a certificate of one's own, and without any."""
    contexts = [ssl.create_default_context(), Security.temporary().get_connection_args("client")["ssl_context"]]
    for context in contexts:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return contexts


if __name__ == "__main__":
    ports, paths, folders = json.loads(sys.argv[1])
    contexts = _contexts()
    paths += _inside(folders)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    assert _opened(tempfile.gettempdir()) is not None
    print(*filter(None, [*asyncio.run(_all(ports, contexts)), *map(_opened, paths)]), sep="\n")
