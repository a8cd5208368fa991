"""A cluster of two hosts that share no disk: what the job reads comes from a server."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.two_hosts import TwoHosts, can_make_hosts

pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="takes the rights to make namespaces of Linux")

_PORT = 5000
_MODEL = """
from hashlib import blake2b
from dpca import CellPCA

def fitted(where):
    model = CellPCA(5, cell_shape=12).fit(where)
    print(blake2b(model.components_.tobytes() + model.mean_.tobytes()).hexdigest())
"""
#: Fits a model to a stack on disk in one process, and moves the stack into the bucket.
_PUT = f"""
import shutil
import numpy as np, s3fs
from dpca import storage
{_MODEL}
np.save("a.npy", np.random.default_rng(0).integers(0, 256, (400, 48, 48, 3), dtype=np.uint8))
storage.ingest("a.npy", "stack.zarr")
fitted("stack.zarr")
bucket = s3fs.S3FileSystem()
bucket.mkdir("bucket")
bucket.put("stack.zarr", "bucket/", recursive=True)
shutil.rmtree("stack.zarr")
"""
#: Fits it to the stack in the bucket, on both hosts.
_FIT = f"""
import sys
from dpca.engine.cluster import open_client
{_MODEL}
with open_client(sys.argv[1]) as client:
    client.wait_for_workers(2, timeout=60)
    fitted("s3://bucket/stack.zarr")
"""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """What tells every process where the server is."""
    return {
        "AWS_ENDPOINT_URL": f"http://10.213.7.1:{_PORT}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@pytest.fixture(scope="module")
def hosts(environment: dict[str, str]) -> Iterator[TwoHosts]:
    """The hosts, and a server on the first of them."""
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    with TwoHosts() as hosts:
        hosts.a.start([sys.executable, "-m", "moto.server", "-H", hosts.a.address, "-p", str(_PORT)])
        yield hosts


def test_they_share_nothing_but_the_cable(hosts: TwoHosts) -> None:
    hosts.a.run(["touch", "/tmp/here"])
    assert hosts.b.run(["ls", "/tmp"]) == ""
    assert not Path("/tmp/here").exists()


def test_both_read_from_the_server(hosts: TwoHosts, environment: dict[str, str]) -> None:
    address = hosts.start_cluster(**environment)
    on_disk = hosts.a.run([sys.executable, "-c", _PUT], **environment)
    assert hosts.a.run([sys.executable, "-c", _FIT, address], **environment) == on_disk
    assert set(_readers(hosts)) == {hosts.a.address, hosts.b.address}


def _readers(hosts: TwoHosts) -> list[str]:
    """Return the host of every request for a chunk, as the server has logged it."""
    return re.findall(r"^(\S+) - - .*GET /bucket/stack.zarr/samples/c/", hosts.a.log.read_text(), re.MULTILINE)
