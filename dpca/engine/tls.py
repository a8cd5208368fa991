"""Certificates with which a program, a scheduler and its workers prove to each other who they are."""

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
    """The files of encrypted connections; each holds PEM.

    Parameters
    ----------
    ca_file : str or None
        Certificate of the authority that signed all others.
    cert : str or None
        Certificate to show.
    key : str or None
        Its private key, without a passphrase; None where the file of the certificate holds it.
    """

    ca_file: str | None
    cert: str | None
    key: str | None = None

    def security(self) -> Security:
        """Return what Dask encrypts connections with, in any part of a cluster.

        Raises
        ------
        DataError
            If a file is not named, cannot be read, or does not hold what it should.
        """
        from distributed.security import Security

        if self.ca_file is None or self.cert is None:
            raise DataError("encrypted connections take a certificate and that of its authority: give both files")
        for path in filter(None, (self.ca_file, self.cert, self.key)):
            try:
                open(path, "rb").close()
            except OSError as error:
                raise DataError(f"'{path}' cannot be read ({error.strerror}): give a file of PEM") from error
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except ssl.SSLError as error:
            raise DataError(f"'{self.ca_file}' holds no certificate ({one_line(error)}): give a file of PEM") from error
        try:
            context.load_cert_chain(self.cert, self.key, password="")  # else a passphrase would be asked for
        except ssl.SSLError as error:
            raise DataError(
                f"'{self.cert}' and '{self.key or self.cert}' are no certificate and its key ({one_line(error)}): give "
                f"two that belong together, without a passphrase"
            ) from error
        # Workers may be started elsewhere, by command lines that hold these names.
        ca_file, cert, key = map(os.path.abspath, (self.ca_file, self.cert, self.key or self.cert))
        roles = ("client", "scheduler", "worker")
        shown = {f"tls_{role}_cert": cert for role in roles} | {f"tls_{role}_key": key for role in roles}
        return Security(require_encryption=True, tls_ca_file=ca_file, **shown)
