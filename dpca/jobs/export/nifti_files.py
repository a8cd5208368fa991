"""What a NIfTI file with all samples needs besides its values: compression, and the b-values beside it."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.disk import atomic_write_bytes, content_of_file
from dpca.storage.errors import StoreError
from dpca.storage.readers.arrays.nifti import B_VALUE, b_values_beside


def b_values_file(target: str | os.PathLike[str], along: Coordinates | None) -> tuple[Path, bytes] | None:
    """Return the file of b-values beside a file of samples, as FSL and BIDS name it; None if there are none.

    Raises
    ------
    StoreError
        If there is such a file with other content.
    """
    found = None if along is None else along.arrays.get(B_VALUE)
    if found is None or along is None or found.dims != along.dims[:1]:
        return None
    path = Path(b_values_beside(os.fspath(target)))
    content = f"{' '.join(f'{n:.15g}' for n in found.values.tolist())}\n".encode()
    if path.exists() and content_of_file(path) != content:
        raise StoreError(f"'{path}' has other b-values than the samples: move it, or choose another output")
    return path, content


def write_beside(file: tuple[Path, bytes] | None) -> None:
    """Write the file of `b_values_file`."""
    if file is not None:
        file[0].parent.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(*file)


def compress_file(path: Path) -> Path:
    """Compress a file by gzip into another one beside it, which has neither its name nor a date; return its path."""
    packed = path.with_name(f"{path.name}.gz")
    with (
        open(path, "rb") as plain,
        open(packed, "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as content,
    ):
        shutil.copyfileobj(plain, content, 2**20)
    return packed
