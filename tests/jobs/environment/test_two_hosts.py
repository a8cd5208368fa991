"""A cluster of two hosts that share no disk: everything that the main job reads and writes lies in a bucket."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.helpers.s3_server import KEYS
from tests.helpers.two_hosts import TwoHosts, can_make_hosts

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not can_make_hosts(), reason="takes the rights to make namespaces of Linux"),
]

#: Makes a store on disk in one process, and the same one in the bucket on both hosts.
_JOB = """
import sys
from pathlib import Path

from dpca import CellPCA, Run
from dpca.engine.clusters.cluster import open_client
from dpca.jobs import CompressionSettings, compress
from tests.conftest import write_images
from tests.helpers.pictures import leave_pictures_empty
from tests.helpers.s3_server import content, upload

def settings():
    return CompressionSettings(CellPCA(2, cell_shape=8), reconstruct=True)

leave_pictures_empty()
photos = write_images(Path("photos"), 24, (48, 48, 3))
compress(photos, "out.zarr", settings())
upload(photos, "s3://bucket/photos")
with open_client(sys.argv[1]) as client:
    client.wait_for_workers(2, timeout=60)
    compress("s3://bucket/photos", "s3://bucket/out.zarr", settings(), run=Run(client=client))
    assert content("s3://bucket/out.zarr") == content("out.zarr")
    print(*client.run(lambda dask_worker: dask_worker.state.executed_count).values())
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    pytest.importorskip("moto.server")
    with TwoHosts() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def environment(hosts: TwoHosts) -> dict[str, str]:
    """What tells every process how to reach the bucket, on a server that fails one request in thirty."""
    return {
        "AWS_ENDPOINT_URL": hosts.a.start(
            [sys.executable, "-m", "tests.helpers.s3_server", "0.03", hosts.a.address], tells=True
        ),
        "AWS_ACCESS_KEY_ID": KEYS["key"],
        "AWS_SECRET_ACCESS_KEY": KEYS["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def test_they_share_nothing_but_the_cable(hosts: TwoHosts) -> None:
    hosts.a.run(["touch", "here"])
    assert hosts.b.run(["ls"]) == ""
    assert hosts.a.disk == hosts.b.disk
    assert not any(hosts.a.disk.iterdir())


def test_the_main_job_goes_through_the_bucket(hosts: TwoHosts, environment: dict[str, str]) -> None:
    address = hosts.start_cluster(**environment)
    tasks = hosts.a.run([sys.executable, "-c", _JOB, address], **environment).split()
    assert len(tasks) == 2
    assert "0" not in tasks
