"""Encrypted connections to a scheduler, with real certificates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import LocalCluster

from dpca import storage
from dpca.cli import main
from dpca.engine.clusters.cluster import open_client
from dpca.engine.clusters.tls import TlsFiles
from dpca.storage import ClusterError, DataError
from tests.conftest import write_images
from tests.helpers.certificates import signed_files


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return signed_files(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Certificates of another authority."""
    return signed_files(tmp_path_factory.mktemp("tls") / "others")


@pytest.fixture(scope="module")
def address(tls: TlsFiles) -> Iterator[str]:
    """A scheduler that takes encrypted connections only, and its worker."""
    with LocalCluster(
        n_workers=1,
        processes=False,
        protocol="tls://",
        host="127.0.0.1",
        security=tls.security(),
        dashboard_address="127.0.0.1:0",
    ) as running:
        yield str(running.scheduler_address)


def test_a_scheduler_that_takes_encrypted_connections_only(address: str, tls: TlsFiles) -> None:
    assert address.startswith("tls://127.0.0.1:")
    with open_client(address, tls=tls) as client:
        assert client.submit(sum, [1, 2], pure=False).result() == 3


def test_the_certificates_of_dasks_own_configuration(address: str, tls: TlsFiles) -> None:
    client = {"cert": tls.cert, "key": tls.key}
    with (
        dask.config.set({"distributed.comm.tls.ca-file": tls.ca_file, "distributed.comm.tls.client": client}),
        open_client(address) as opened,
    ):
        assert opened.submit(sum, [1, 2], pure=False).result() == 3


def test_commands_take_the_files(
    address: str, tls: TlsFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage.ingest(write_images(tmp_path / "photos", 4, (8, 8, 3)), tmp_path / "stack.zarr")
    command = ["verify", str(tmp_path / "stack.zarr"), "--scheduler", address]
    files = ["--tls-ca-file", str(tls.ca_file), "--tls-cert", str(tls.cert), "--tls-key", str(tls.key)]
    assert main([*command, *files]) == 0
    assert main([*command, *files[:4]]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_no_certificate(address: str) -> None:
    with (
        dask.config.set({"distributed.comm.tls.ca-file": None}),
        pytest.raises(DataError, match="--tls-ca-file"),
        open_client(address),
    ):
        pytest.fail("opened")


def test_certificates_of_another_authority(address: str, tls: TlsFiles, others: TlsFiles) -> None:
    with (
        pytest.raises(ClusterError, match="--tls-ca-file"),
        open_client(address, tls=others),
    ):
        pytest.fail("opened")
    with (
        pytest.raises(ClusterError, match="--tls-cert"),
        open_client(address, tls=replace(others, ca_file=tls.ca_file)),
    ):
        pytest.fail("opened")


def test_a_connection_that_is_not_encrypted(address: str) -> None:
    with (
        pytest.raises(ClusterError, match="tls://"),
        open_client(address.replace("tls://", "tcp://")),
    ):
        pytest.fail("opened")


@pytest.mark.parametrize("where", [{"scheduler": "tcp://127.0.0.1:1"}, {}, {"workers": 1}])
def test_certificates_for_nobody(where: dict[str, Any], tls: TlsFiles) -> None:
    with pytest.raises(DataError, match="certificates"), open_client(tls=tls, **where):
        pytest.fail("opened")


def test_files_that_hold_something_else(tls: TlsFiles, others: TlsFiles, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for wrong, says in (
        (replace(tls, ca_file=None), "give both files"),
        (replace(tls, cert=None), "give both files"),
        (replace(tls, ca_file=str(tmp_path / "none.pem")), "none.pem' cannot be read"),
        (replace(tls, key=str(tmp_path)), "cannot be read"),
        (replace(tls, ca_file=str(empty)), "empty.pem' has no certificate"),
        (replace(tls, cert=str(empty)), "are not a certificate and its key"),
        (replace(tls, key=others.key), "are not a certificate and its key"),
        (replace(tls, key=None), "are not a certificate and its key"),
    ):
        with pytest.raises(DataError, match=says):
            wrong.security()


def test_one_file_may_hold_certificate_and_key(tls: TlsFiles, tmp_path: Path, address: str) -> None:
    both = tmp_path / "both.pem"
    both.write_text(Path(str(tls.cert)).read_text() + Path(str(tls.key)).read_text())
    with open_client(address, tls=TlsFiles(tls.ca_file, str(both))) as client:
        assert client.submit(sum, [1, 2], pure=False).result() == 3
