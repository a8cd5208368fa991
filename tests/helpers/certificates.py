"""Authorities, and certificates that they sign, as files."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import dask
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dpca.engine.clusters.tls import TlsFiles


def signed_files(folder: Path) -> TlsFiles:
    """Make an authority and a certificate that it signed; return their files."""
    folder.mkdir()
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    contents = {
        "ca.pem": _certificate("the authority", authority, authority).public_bytes(serialization.Encoding.PEM),
        "dask.pem": _certificate("dask", key, authority).public_bytes(serialization.Encoding.PEM),
        "dask.key": key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return TlsFiles(*(str(folder / name) for name in contents))


@contextmanager
def shown_to(client: Any) -> Iterator[None]:
    """Have Dask show the credentials of a cluster of ours, in this process and in programs that start meanwhile."""
    shown = client.security.get_tls_config_for_role("client")
    contents = {"ca-file": shown["ca_file"], "client.cert": shown["cert"], "client.key": shown["key"]}
    with TemporaryDirectory() as folder:
        names = {name: os.path.join(folder, name) for name in contents}
        for name, path in names.items():
            Path(path).write_text(contents[name])
        variables = {name.upper().replace(".", "__").replace("-", "_"): path for name, path in names.items()}
        with (
            dask.config.set({f"distributed.comm.tls.{name}": path for name, path in names.items()}),
            patch.dict(os.environ, {f"DASK_DISTRIBUTED__COMM__TLS__{name}": path for name, path in variables.items()}),
        ):
            yield


def _certificate(name: str, key: ec.EllipticCurvePrivateKey, authority: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named("the authority"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=key is authority, path_length=None), critical=True)
        .sign(authority, hashes.SHA256())
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
