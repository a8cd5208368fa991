"""Damaged sources of every format, under a limit of memory: a stack, or one sentence that names the file."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

from dpca.storage.run import Run
from tests.storage.sources.fuzz_trial import run_fuzzed, run_given
from tests.storage.sources.fuzzed_sources import FORMATS
from tests.storage.sources.made_sources import jpegs, write_idx, write_zip


@pytest.mark.fuzz
def test_damaged_sources_of_every_format(tmp_path: Path) -> None:
    faults = list(run_fuzzed(2025, 0, 3 * len(FORMATS), tmp_path))
    assert not faults, "\n\n".join(f"{fault.number} {fault.kind}: {fault.what}" for fault in faults)


@pytest.mark.parametrize("form", FORMATS)
def test_the_sources_are_sound_before(form: str, tmp_path: Path) -> None:
    from dpca.storage.ingest import ingest

    (tmp_path / "in").mkdir()
    assert ingest(FORMATS[form](tmp_path / "in"), tmp_path / "out.zarr", run=Run(threads=1)).n_samples >= 4


def npy(header: str, content: bytes = bytes(4000)) -> bytes:
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def shaped(shape: str, kind: str = "|u1") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"


def npz(path: Path, method: int, **members: bytes) -> Path:
    with zipfile.ZipFile(path / "s.npz", "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path / "s.npz"


def saved(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def idx(*shape: int, content: bytes = b"", code: int = 8) -> bytes:
    return gzip.compress(bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content)


def patched(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert content.count(old) == 1
    return written(path, content.replace(old, new))


def bad_directory(path: Path) -> Path:
    content = bytearray(write_zip(path / "s.zip", jpegs(3)).read_bytes())
    struct.pack_into("<I", content, content.rindex(b"PK\x05\x06") + 12, 2**32 - 2)
    return written(path / "s.zip", bytes(content))


def nameless(path: Path) -> Path:
    with zipfile.ZipFile(path / "s.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("\0"), b"x")
    return path / "s.zip"


def wrong_member(path: Path) -> Path:
    made = npz(path, zipfile.ZIP_STORED, images=saved(np.zeros((9, 4, 4))))
    content = made.read_bytes()
    return written(made, content.replace(b"PK\x03\x04", b"PK\x09\x04", 1))


def labeled(path: Path, images: bytes, labels: bytes) -> Path:
    written(path / "s-labels-idx1-ubyte.gz", labels)
    return written(path / "s-images-idx3-ubyte.gz", images)


def one_chunk(path: Path) -> Path:
    shape = (20, 200_000, 300_000)
    zarr.create_array(path / "s.zarr", shape=shape, chunks=shape, dtype="u1")
    return path / "s.zarr"


def hollow(path: Path) -> Path:
    zarr.create_array(path / "s.zarr", shape=(2**40, 4, 4), chunks=(2, 4, 4), dtype="u1")
    return path / "s.zarr"


IMAGES = saved(np.zeros((9, 4, 4), np.uint8))
CLAIMS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "zip: a directory elsewhere": (bad_directory, "'s.zip' is truncated or broken"),
    "zip: a member without a name": (nameless, "has a path that leads out of the archive"),
    "npy: a negative shape": (lambda p: written(p / "s.npy", npy(shaped("(-1, 3)"))), "(-1, 3)"),
    "npy: two negative axes": (lambda p: written(p / "s.npy", npy(shaped("(-2, -3)"))), "(-2, -3)"),
    "npy: an unclosed shape": (lambda p: written(p / "s.npy", npy(shaped("(9, 4"))), "'s.npy' is not an array"),
    "npy: nested without end": (lambda p: written(p / "s.npy", npy(shaped("(" * 900))), "'s.npy' is not an array"),
    "npy: more axes than there are": (lambda p: written(p / "s.npy", npy(shaped("(" + "1," * 70 + ")"))), "'s.npy'"),
    "npy: beyond all files": (lambda p: written(p / "s.npy", npy(shaped(f"({2**70}, 3)"))), "invalid shape"),
    "npz: short labels": (
        lambda p: npz(p, zipfile.ZIP_STORED, images=IMAGES, labels=saved(np.arange(9))[:-9]),
        "'s.npz/labels' is truncated",
    ),
    "npz: short labels, deflated": (
        lambda p: npz(p, zipfile.ZIP_DEFLATED, images=IMAGES, labels=saved(np.arange(9))[:-9]),
        "'s.npz/labels' is truncated",
    ),
    "npz: a wrong member header": (wrong_member, "'s.npz/images' is truncated or broken"),
    "npz: samples that are not there": (
        lambda p: npz(p, zipfile.ZIP_DEFLATED, images=npy(shaped(f"({4 * 10**9}, 4)"))),
        "'s.npz/images' claims 16,000,000,000 bytes",
    ),
    "npz: labels that are not there": (
        lambda p: npz(p, zipfile.ZIP_DEFLATED, images=IMAGES, labels=npy(shaped("(9,)", "<U1000000"))),
        "'s.npz/labels' claims 36,000,000 bytes",
    ),
    "IDX: samples that are not there": (
        lambda p: written(p / "s.gz", idx(2**32 - 1, 1, 1, content=bytes(99))),
        "'s.gz' claims 4,294,967,295 bytes",
    ),
    "IDX: a sample that is not there": (
        lambda p: written(p / "s.gz", idx(1, 2**20, 2**20, content=bytes(99))),
        "'s.gz' claims 1,099,511,627,776 bytes",
    ),
    "IDX: labels that are not there": (
        lambda p: labeled(p, idx(2**26, 1, 1, content=bytes(2**26)), idx(2**26, code=0x0E, content=bytes(99))),
        "'s-labels-idx1-ubyte.gz' claims 536,870,912 bytes",
    ),
    "Zarr: one chunk of 1.2 TB": (one_chunk, "s.zarr' has chunks of 1,200,000,000,000 bytes"),
    "Zarr: a claim with nothing behind it": (hollow, "549,755,813,888 chunks"),
    "IDX: plain and far too long": (
        lambda p: written(p / "s.idx", gzip.decompress(idx(2**32 - 1, 9, 9))),
        "'s.idx' is truncated",
    ),
    "IDX: a cut header": (
        lambda p: written(p / "s.idx", write_idx(p / "t", np.zeros((2, 3))).read_bytes()[:7]),
        "s.idx",
    ),
}


def test_no_claim_takes_memory_before_its_bytes_are_seen(tmp_path: Path) -> None:
    sources = {}
    for i, (name, (make, _)) in enumerate(CLAIMS.items()):
        (tmp_path / str(i)).mkdir()
        sources[name] = make(tmp_path / str(i))
    ended = dict(zip(sources, run_given(list(sources.values()), tmp_path), strict=True))
    wrong = {name: end for name, end in ended.items() if not end.startswith("refused: ") or CLAIMS[name][1] not in end}
    assert not wrong
