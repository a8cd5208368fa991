"""TLS certificates, with which a program, a scheduler and its workers authenticate each other."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpca.storage.errors import DataError, one_line

if TYPE_CHECKING:
    from distributed.security import Security


@dataclass(frozen=True)
class TlsFiles:
    """The files for encrypted connections, in PEM format.

    Parameters
    ----------
    ca_file : str or None
        CA certificate, which signed all other certificates.
    cert : str or None
        Client certificate.
    key : str or None
        Private key of the client certificate, without a passphrase; None if it is in the file of the certificate.
    """

    ca_file: str | None
    cert: str | None
    key: str | None = None

    def security(self) -> Security:
        """Return Dask's settings for encrypted connections, for all parts of a cluster.

        Raises
        ------
        DataError
            If a file is missing, cannot be read, or has no valid content.
        """
        from distributed.security import Security

        if self.ca_file is None or self.cert is None:
            raise DataError("encrypted connections require a certificate and a CA certificate: give both files")
        for path in filter(None, (self.ca_file, self.cert, self.key)):
            try:
                open(path, "rb").close()
            except OSError as error:
                raise DataError(f"'{path}' cannot be read ({error.strerror}): give a PEM file") from error
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except ssl.SSLError as error:
            raise DataError(f"'{self.ca_file}' has no certificate ({one_line(error)}): give a PEM file") from error
        try:
            context.load_cert_chain(self.cert, self.key, password="")  # prevents a prompt for a passphrase
        except ssl.SSLError as error:
            raise DataError(
                f"'{self.cert}' and '{self.key or self.cert}' are not a certificate and its key ({one_line(error)}): "
                f"give a matching pair, without a passphrase"
            ) from error
        # Absolute paths, because workers may be started in other folders, by command lines with these paths.
        ca_file, cert, key = map(os.path.abspath, (self.ca_file, self.cert, self.key or self.cert))
        roles = ("client", "scheduler", "worker")
        shown = {f"tls_{role}_cert": cert for role in roles} | {f"tls_{role}_key": key for role in roles}
        return Security(require_encryption=True, tls_ca_file=ca_file, **shown)
