"""Damage to files of every format, at random but repeatably."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator
HOSTILE = (0, 1, 2, -1, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 10**9)


def _flip(data: bytearray, rng: Rng) -> None:
    for _ in range(int(rng.integers(1, 9))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))


def _flip_early(data: bytearray, rng: Rng) -> None:
    for _ in range(int(rng.integers(1, 5))):
        data[int(rng.integers(min(len(data), 256)))] ^= 1 << int(rng.integers(8))


def _truncate(data: bytearray, rng: Rng) -> None:
    del data[int(rng.integers(len(data))) :]


def _insert(data: bytearray, rng: Rng) -> None:
    at = int(rng.integers(len(data)))
    data[at:at] = rng.bytes(int(rng.integers(1, 200)))


def _cut_out(data: bytearray, rng: Rng) -> None:
    at = int(rng.integers(len(data)))
    del data[at : at + int(rng.integers(1, 600))]


def _splice(data: bytearray, rng: Rng) -> None:
    """Put one part of the file over another: whole structures in the wrong place."""
    n = int(rng.integers(1, max(2, len(data) // 3)))
    source, target = (int(rng.integers(max(1, len(data) - n))) for _ in range(2))
    data[target : target + n] = data[source : source + n]


def _blank(data: bytearray, rng: Rng) -> None:
    at, n = int(rng.integers(len(data))), int(rng.integers(1, 4096))
    part = len(data[at : at + n])
    data[at : at + n] = bytes([int(rng.choice([0, 255]))]) * part


def _field(data: bytearray, rng: Rng) -> None:
    """Set an aligned integer, probably in a header at either end, to an invalid value."""
    size = int(rng.choice([1, 2, 4, 8]))
    reach = min(len(data), int(rng.choice([64, 256, 2048, len(data)])))
    at = int(rng.integers(max(1, reach))) // size * size
    if rng.random() < 0.3:
        at = max(0, len(data) - size - at)
    _put(data, at, size, rng)


def _put(data: bytearray, at: int, size: int, rng: Rng) -> None:
    value = int(HOSTILE[int(rng.integers(len(HOSTILE)))]) & ((1 << 8 * size) - 1)
    data[at : at + size] = value.to_bytes(size, "little" if rng.random() < 0.6 else "big")


BYTES: list[Callable[[bytearray, Rng], None]] = [
    _flip,
    _flip_early,
    _truncate,
    _insert,
    _cut_out,
    _splice,
    _blank,
    _field,
    _field,
    _field,
]

# where the integers lie in what a magic number begins: (offset, size)
_RECORDS: dict[bytes, list[tuple[int, int]]] = {
    b"PK\x01\x02": [(8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (38, 4), (42, 4)],
    b"PK\x03\x04": [(6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)],
    b"PK\x05\x06": [(4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)],
    b"TREE": [(4, 1), (5, 1), (6, 2), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8)],
    b"SNOD": [(6, 2), (8, 8), (16, 8), (48, 8)],
    b"HEAP": [(8, 8), (16, 8), (24, 8)],
    b"GCOL": [(8, 8), (16, 2), (24, 8)],
}


def _record(data: bytearray, rng: Rng) -> None:
    """Set a field of a record that the format's readers look for."""
    places = [(m.start(), fields) for magic, fields in _RECORDS.items() for m in re.finditer(re.escape(magic), data)]
    if not places:
        return _field(data, rng)
    start, fields = places[int(rng.integers(len(places)))]
    offset, size = fields[int(rng.integers(len(fields)))]
    return _put(data, start + offset, size, rng)


def _tar_header(data: bytearray, rng: Rng) -> None:
    """Change a header of an archive and make its checksum right again."""
    headers = [m.start() - 257 for m in re.finditer(b"ustar", data) if m.start() >= 257]
    if not headers:
        return
    at = headers[int(rng.integers(len(headers)))]
    field, length = [(0, 100), (124, 12), (156, 1), (157, 100), (345, 155)][int(rng.integers(5))]
    values = [
        b"%o" % 2**33,
        b"-1",
        b"777777777777",
        b"\x80" + b"\xff" * 11,
        b"0",
        b"S",
        b"x",
        b"L",
        b"g",
        b"1",
        b"../x",
    ]
    value = values[int(rng.integers(len(values)))][:length]
    data[at + field : at + field + length] = value.ljust(length, b"\0")
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])


def _npy_header(data: bytearray, rng: Rng) -> None:
    """Change the text of an array's header and keep its length right."""
    at = data.find(b"\x93NUMPY")
    if at < 0 or len(data) < at + 10:  # an earlier change cut it off
        return
    (n,) = struct.unpack_from("<H", data, at + 8)
    text = data[at + 10 : at + 10 + n].decode("latin1")
    shapes = ["(-1, 3)", "(12, -12, 10, 3)", "(12, 12", f"({2**63}, 3)", f"({2**40}, 2)", "(0, 3)", "12", "(12, 10L)"]
    shapes += ["(" * 300, "(1e3, 4)", "('a', 4)", "[12, 12, 10, 3]", "(2, 0)", "(True, 5)", "(" + "1," * 70 + ")"]
    types = ["'|O'", "'<U9'", "'<c16'", "'|V0'", "[('a', '<i4')]", "'<f16'", "None", "'<f8'", "'|S0'", "'<M8[s]'"]
    if rng.random() < 0.6:
        text = re.sub(r"\(.*?\)", lambda _: shapes[int(rng.integers(len(shapes)))], text, count=1)
    else:
        text = re.sub(r"'[|<>]..?'", lambda _: types[int(rng.integers(len(types)))], text, count=1)
    if rng.random() < 0.2:
        text = text.replace("False", ["True", "1", "maybe", ""][int(rng.integers(4))])
    data[at + 10 : at + 10 + n] = text.rstrip().ljust(n - 1).encode("latin1") + b"\n"
    struct.pack_into("<H", data, at + 8, len(text.rstrip().ljust(n - 1)) + 1)


def _png_header(data: bytearray, rng: Rng) -> None:
    """Change the size or the kind of a picture and make the checksum right again."""
    if data[:4] != b"\x89PNG":
        return _field(data, rng)
    at, size = [(16, 4), (20, 4), (24, 1), (25, 1), (28, 1)][int(rng.integers(5))]
    _put(data, at, size, rng)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return None


_HOSTILE_JSON: list[Any] = [
    *(0, 1, -1, 2**31, 2**32 - 1, 2**63 - 1, 2**70, 1e308, -0.5, float("nan"), float("inf")),
    *(None, True, "", "x", "\ud800", [], {}, [[]], [0], [-1], {"name": "x"}, "NaN", "pickle", "../../x", [1] * 99),
]


def _json(data: bytearray, rng: Rng) -> None:
    """Replace one value of metadata, drop it, or write the text of something else."""
    try:
        tree = json.loads(data)
    except ValueError:
        return
    places: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            places.append((node, key))
            if isinstance(value, dict | list):
                waiting.append(value)
    if not places:
        return
    node, key = places[int(rng.integers(len(places)))]
    if rng.random() < 0.15:
        del node[key]
    else:
        node[key] = _HOSTILE_JSON[int(rng.integers(len(_HOSTILE_JSON)))]
    data[:] = json.dumps(tree).encode()


def damaged(content: bytes, name: str, form: str, rng: Rng) -> bytes:
    """Return the content of a file, damaged with knowledge of its format or at random."""
    data = bytearray(content)
    if name.endswith(".gz") and rng.random() < 0.6:
        data = bytearray(gzip.decompress(content))
        _byte_damage(data, form, rng)
        return gzip.compress(bytes(data))
    if form == "compressed npz" and rng.random() < 0.6:
        return _repacked(content, rng)
    if name.endswith((".json", ".zarray", ".zattrs")) and rng.random() < 0.8:
        for _ in range(int(rng.integers(1, 3))):
            _json(data, rng)
        return bytes(data)
    _byte_damage(data, form, rng)
    return bytes(data)


def _byte_damage(data: bytearray, form: str, rng: Rng) -> None:
    aware = {"npy": _npy_header, "npz": _npy_header, "tar": _tar_header, "tar.gz": _tar_header}
    aware |= {"zip": _record, "deflated zip": _record, "compressed npz": _record, "folder of PNG": _png_header}
    for _ in range(int(rng.integers(1, 4))):
        if not data:
            return
        special = aware.get(form, _record if "HDF5" in form else _field)
        (special if rng.random() < 0.5 else BYTES[int(rng.integers(len(BYTES)))])(data, rng)


def _repacked(content: bytes, rng: Rng) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            data = bytearray(old.read(name))
            if rng.random() < 0.6:
                _byte_damage(data, "npy", rng)
            new.writestr(name, bytes(data))
    return made.getvalue()
