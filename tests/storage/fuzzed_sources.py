"""Sources of every format, damaged at random but repeatably."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from made_sources import encoded, pixels, write_folder, write_idx, write_lsun, write_tar, write_zip

Rng = np.random.Generator
HOSTILE = (0, 1, 2, -1, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 10**9)


# ---------------------------------------------------------------------------------------------------- sound sources


def _pictures(kind: str, suffix: str) -> dict[str, bytes]:
    return {f"a/{i}.{suffix}": encoded(pixels(i), kind) for i in range(6)}


def _values() -> np.ndarray[Any, Any]:
    return np.stack([pixels(i, 12, 10) for i in range(12)])


def _mixed() -> dict[str, bytes]:
    kinds = [("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"), ("TIFF", "tif")]
    return {f"a/{i}.{suffix}": encoded(pixels(i), kind) for i, (kind, suffix) in enumerate(kinds)}


def _others() -> dict[str, bytes]:
    kinds = ("GIF", "BMP", "PPM", "AVIF", "JPEG2000", "QOI", "PCX", "SGI", "TGA")
    return {f"a/{kind}{'.tga' if kind == 'TGA' else ''}": encoded(pixels(), kind) for kind in kinds}


def _npy(path: Path) -> Path:
    np.save(path / "s.npy", _values())
    return path / "s.npy"


def _tiff(**options: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        import tifffile

        tifffile.imwrite(path / "s.tif", _values(), photometric="rgb", **options)
        return path / "s.tif"

    return make


def _netcdf3(path: Path) -> Path:
    from scipy.io import netcdf_file

    with netcdf_file(path / "s.nc", "w") as file:
        for name, length in zip("tyxc", (None, 12, 10, 3), strict=True):
            file.createDimension(name, length)
        for name, type_ in (("time", "f8"), ("images", "i2")):
            file.createVariable(name, type_, "tyxc"[: 1 if name == "time" else 4])
        file.variables["time"][:] = np.arange(12)
        file.variables["images"][:] = _values()
        file.variables["images"].scale_factor = np.float32(0.5)
    return path / "s.nc"


def _nifti(suffix: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        import nibabel

        image = nibabel.Nifti1Image(np.moveaxis(_values(), 0, -1), np.eye(4))
        image.header.set_slope_inter(0.5, 1)
        nibabel.save(image, path / f"s.nii{suffix}")
        return path / f"s.nii{suffix}"

    return make


def _video(codec: str, suffix: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        import av

        with av.open(path / f"s.{suffix}", "w") as file:
            stream = file.add_stream(codec, rate=10)
            stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"  # type: ignore[attr-defined]
            for i in range(12):
                frame = av.VideoFrame.from_ndarray(pixels(i, 48, 64), format="rgb24")
                file.mux(stream.encode(frame.reformat(format="yuv420p")))  # type: ignore[attr-defined]
            file.mux(stream.encode(None))  # type: ignore[attr-defined]
        return path / f"s.{suffix}"

    return make


def _npz(save: Callable[..., None]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        save(path / "s.npz", images=_values(), labels=np.arange(12))
        return path / "s.npz"

    return make


def _idx(suffix: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        write_idx(path / f"t-labels-idx1-ubyte{suffix}", np.arange(12, dtype=np.uint8))
        return write_idx(path / f"t-images-idx3-ubyte{suffix}", _values()[..., 0])

    return make


def _hdf5(libver: str = "earliest", dtype: Any = np.float32, **options: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        import h5py

        with h5py.File(path / "s.h5", "w", libver=libver) as file:
            file.create_dataset("g/images", data=_values().astype(dtype), **options)
            file["g/labels"] = np.arange(12)
            file["g/images"].attrs["scale_factor"] = np.float32(0.5)
        return path / "s.h5"

    return make


def _lmdb(path: Path) -> Path:
    # large values lie in pages of their own, small ones beside their keys, and so many keys need a branch page
    pictures = {f"{i:03d}".encode(): encoded(pixels(i, *(24, 20) if i else (60, 60)), "WEBP") for i in range(120)}
    pictures[b"000"] = encoded(pixels(0), "TIFF")
    return write_lsun(path / "s", pictures)


def _ome_zarr(path: Path) -> Path:
    import zarr

    image = {"axes": [{"name": axis} for axis in "tczyx"], "datasets": [{"path": "0"}]}
    group = zarr.create_group(path / "s.zarr", zarr_format=2, attributes={"multiscales": [image]})
    group.create_array("0", data=np.moveaxis(_values(), -1, 1)[:, :, None], chunks=(4, 3, 1, 12, 10))
    return path / "s.zarr"


def _zarr(version: int, **options: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        import zarr

        array = zarr.create_array(
            path / "s.zarr",
            shape=(12, 12, 10, 3),
            dtype=np.float32,
            chunks=(2, 12, 5, 3),
            zarr_format=version,  # type: ignore[arg-type]
            attributes={"scale_factor": 0.5, "_FillValue": -1.0, "units": "K"},
            **options,
        )
        array[:] = _values()
        return path / "s.zarr"

    return make


FORMATS: dict[str, Callable[[Path], Path]] = {
    "folder of JPEG": lambda path: write_folder(path / "s", _pictures("JPEG", "jpg")),
    "folder of PNG": lambda path: write_folder(path / "s", _pictures("PNG", "png")),
    "folder of WebP": lambda path: write_folder(path / "s", _pictures("WEBP", "webp")),
    "folder of TIFF": lambda path: write_folder(path / "s", _pictures("TIFF", "tif")),
    "folder of other pictures": lambda path: write_folder(path / "s", _others()),
    "zip": lambda path: write_zip(path / "s.zip", _mixed()),
    "deflated zip": lambda path: write_zip(path / "s.zip", _mixed(), zipfile.ZIP_DEFLATED),
    "tar": lambda path: write_tar(path / "s.tar", _mixed()),
    "tar.gz": lambda path: write_tar(path / "s.tar.gz", _mixed(), "gz"),
    "tar.bz2": lambda path: write_tar(path / "s.tar.bz2", _mixed(), "bz2"),
    "tar.xz": lambda path: write_tar(path / "s.tar.xz", _mixed(), "xz"),
    "TIFF of ImageJ": _tiff(imagej=True, metadata={"axes": "TYXS"}),
    "deflated OME-TIFF": _tiff(ome=True, metadata={"axes": "TYXS"}, tile=(16, 16), compression="zlib"),
    "npy": _npy,
    "npz": _npz(np.savez),
    "compressed npz": _npz(np.savez_compressed),
    "IDX": _idx(""),
    "gzipped IDX": _idx(".gz"),
    "MP4": _video("mpeg4", "mp4"),
    "Matroska": _video("ffv1", "mkv"),
    "netCDF-3": _netcdf3,
    "NIfTI": _nifti(""),
    "gzipped NIfTI": _nifti(".gz"),
    "HDF5": _hdf5(),
    "chunked HDF5": _hdf5(chunks=(3, 12, 5, 3)),
    "gzipped HDF5": _hdf5(chunks=(3, 12, 5, 3), compression="gzip", shuffle=True, fletcher32=True),
    "HDF5 of the newest layout": _hdf5("latest", chunks=(3, 12, 5, 3), compression="lzf"),
    "HDF5 of scaled integers": _hdf5("latest", np.int32, chunks=(3, 12, 5, 3), scaleoffset=0),
    "LMDB": _lmdb,
    "Zarr v2": _zarr(2),
    "OME-Zarr": _ome_zarr,
    "Zarr v3": _zarr(3),
    "sharded Zarr v3": _zarr(3, shards=(4, 12, 10, 3)),
}

# ----------------------------------------------------------------------------------------------------------- damage


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
    """Set an aligned integer, likely one of a header at either end, to a value that no reader wants to see."""
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


def _damaged(content: bytes, name: str, form: str, rng: Rng) -> bytes:
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


def _chosen_files(source: Path, form: str, rng: Rng) -> list[Path]:
    root = source.parent
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "lock.mdb")
    if "Zarr" in form:  # most of what can be said wrong is said in the metadata
        metadata = [path for path in files if path.name in ("zarr.json", ".zarray", ".zattrs")]
        files = metadata if rng.random() < 0.7 else files
    return [files[int(i)] for i in rng.choice(len(files), size=min(len(files), int(rng.integers(1, 3))), replace=False)]


def form_of(number: int, only: str) -> str:
    """Return the format of a source; formats take turns, those with `only` in their names."""
    forms = [form for form in FORMATS if only in form]
    return forms[number % len(forms)]


def make_fuzzed(number: int, seed: int, folder: Path, only: str) -> tuple[str, Path]:
    """Make source `number` of a seed in an empty folder; return its format and its path."""
    rng = np.random.default_rng([seed, number])
    form = form_of(number, only)
    source = FORMATS[form](folder)
    for path in _chosen_files(source, form, rng):
        path.write_bytes(_damaged(path.read_bytes(), path.name, form, rng))
        if "Zarr" in form and path.name not in ("zarr.json", ".zarray", ".zattrs") and rng.random() < 0.2:
            path.unlink()
            path.mkdir()
    return form, source
