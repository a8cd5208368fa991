"""Sources that are hostile in their structure, not at random: links, cycles, claims, bombs."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tifffile

from tests.storage.sources.made_sources import encoded, jpegs, member, pixels, write_tar, write_zip

Make = Callable[[Path], Path]
VALUES = np.stack([pixels(i, 12, 10) for i in range(12)])
GOOD = jpegs(4)
#: What nobody may see of a source: a file that lies beside it.
SECRET = np.full((12, 4, 4), -77.125, np.float32)


def secret(path: Path) -> Path:
    """Write a file beside a source which nothing in it may lead to."""
    with h5py.File(path / "secret.h5", "w") as file:
        file["x"] = SECRET
    SECRET.tofile(path / "secret.raw")
    return path


def hdf5(write: Callable[[Any, Path], None], **options: Any) -> Make:
    def make(path: Path) -> Path:
        secret(path)
        with h5py.File(path / "s.h5", "w", **options) as file:
            write(file, path)
        return path / "s.h5"

    return make


def _external_link(file: Any, path: Path) -> None:
    file["x"] = h5py.ExternalLink("secret.h5", "/x")
    file["y"] = h5py.ExternalLink(str(path / "secret.h5"), "/x")


def _links_in_a_circle(file: Any, path: Path) -> None:
    file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/a")
    file["g/self"] = h5py.SoftLink("/g")


def _groups_in_a_circle(file: Any, path: Path) -> None:
    file.create_group("g")["up"] = file["/"]
    file["g/own"] = file["g"]


def _virtual(where: str) -> Callable[[Any, Path], None]:
    def write(file: Any, path: Path) -> None:
        layout = h5py.VirtualLayout((12, 4, 4), "f4")
        layout[:] = h5py.VirtualSource(where, "x", (12, 4, 4))
        file.create_virtual_dataset("x", layout)

    return write


def _external_storage(where: str) -> Callable[[Any, Path], None]:
    def write(file: Any, path: Path) -> None:
        file.create_dataset("x", (12, 4, 4), "f4", external=[(where, 0, 12 * 64)])

    return write


def _packed(*filters: str, claim: int = 1 << 12, holds: int = 1 << 28, times: int = 1) -> Callable[[Any, Path], None]:
    """A chunk that claims few bytes and whose deflated content is many."""

    def write(file: Any, path: Path) -> None:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((1, claim))
        for _ in range(times):
            plist.set_filter(h5py.h5z.FILTER_DEFLATE, 0, (9,))
        space = h5py.h5s.create_simple((4, claim))
        made = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_UINT8, space, plist)
        plain, bomb = bytes(claim), b""
        packer = zlib.compressobj(9)
        bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(holds >> 20)) + packer.flush()
        for _ in range(times - 1):
            bomb = zlib.compress(bomb, 9)
        for _ in range(times):
            plain = zlib.compress(plain)
        for i in range(4):
            made.write_direct_chunk((i, 0), bomb if i == 2 else plain)

    return write


def _shaped(shape: tuple[int, ...], **options: Any) -> Callable[[Any, Path], None]:
    def write(file: Any, path: Path) -> None:
        file.create_dataset("x", shape, "f4", **options)

    return write


def _many_groups(file: Any, path: Path) -> None:
    group = file
    for _ in range(3000):
        group = group.create_group("g")
    group["x"] = VALUES


def _attributes(**stated: Any) -> Callable[[Any, Path], None]:
    def write(file: Any, path: Path) -> None:
        made = file.create_dataset("x", data=VALUES.astype("i2"))
        for name, value in stated.items():
            made.attrs[name] = value

    return write


def _scales(file: Any, path: Path) -> None:
    """Dimension scales that are the array itself, a group, and a reference to nothing."""
    made = file.create_dataset("x", data=VALUES)
    file.create_group("g")
    kind = h5py.vlen_dtype(h5py.ref_dtype)
    references = np.empty(4, object)
    for i, of in enumerate((made.ref, file["g"].ref, h5py.Reference(), made.ref)):
        references[i] = np.array([of], h5py.ref_dtype)
    made.attrs.create("DIMENSION_LIST", references, dtype=kind)


def _named(name: str) -> Callable[[Any, Path], None]:
    def write(file: Any, path: Path) -> None:
        file.create_dataset(name, data=VALUES.astype("f4") * np.nan)

    return write


def _typed(dtype: Any) -> Callable[[Any, Path], None]:
    def write(file: Any, path: Path) -> None:
        file.create_dataset("x", (12, 4, 4), dtype)

    return write


def _changed(make: Make, old: bytes, new: bytes, which: int = 0) -> Make:
    def changed(path: Path) -> Path:
        made = make(path)
        content = bytearray(made.read_bytes())
        at = -1
        for _ in range(which + 1):
            at = content.index(old, at + 1)
        content[at : at + len(old)] = new
        made.write_bytes(bytes(content))
        return made

    return changed


HDF5: dict[str, Make] = {
    "external links": hdf5(_external_link),
    "soft links in a circle": hdf5(_links_in_a_circle),
    "groups in a circle": hdf5(_groups_in_a_circle),
    "virtual, of another file": hdf5(_virtual("secret.h5")),
    "virtual, of itself": hdf5(_virtual(".")),
    "external storage": hdf5(_external_storage("secret.raw")),
    "external storage elsewhere": hdf5(_external_storage("/etc/passwd")),
    "a bomb in a chunk": hdf5(_packed()),
    "a small bomb in a chunk": hdf5(_packed(holds=3 << 20)),
    "a bomb in a bomb": hdf5(_packed(times=2)),
    "a huge shape": hdf5(_shaped((2**62, 2), chunks=(2, 2))),
    "a huge shape, whole": hdf5(_shaped((2**40, 2**10))),
    "a huge shape of one sample": hdf5(_shaped((1, 2**40, 2**10), chunks=(1, 2, 2))),
    "the largest chunk": hdf5(_shaped((4, 2**30 - 1), chunks=(1, 2**30 - 1), compression="gzip")),
    "no samples": hdf5(_shaped((0, 5, 5), maxshape=(None, 5, 5))),
    "deep groups": hdf5(_many_groups),
    "NaN for a factor": hdf5(_attributes(scale_factor=np.nan)),
    "infinity for an offset": hdf5(_attributes(add_offset=np.inf)),
    "the smallest factor": hdf5(_attributes(scale_factor=5e-324)),
    "the largest factor": hdf5(_attributes(scale_factor=1e308)),
    "a range of NaN": hdf5(_attributes(valid_range=[np.nan, np.nan])),
    "an empty range": hdf5(_attributes(valid_min=5, valid_max=-5)),
    "a fill value of every kind": hdf5(_attributes(_FillValue=np.arange(-9, 9), missing_value="none")),
    "an empty attribute": hdf5(_attributes(_FillValue=h5py.Empty("f4"))),
    "an attribute of objects": hdf5(_attributes(scale_factor="1" * 60000, units="x" * 60000)),
    "scales that are none": hdf5(_scales),
    "coordinates that are itself": hdf5(_attributes(coordinates="x x g/y .. /x " + "x " * 5000)),
    "a name of lines": hdf5(_named("a\nb\r\x1b[31m")),
    "a name of thousands": hdf5(_named("n" * 5000)),
    "references": hdf5(_typed(h5py.ref_dtype)),
    "texts of any length": hdf5(_typed(h5py.string_dtype())),
    "rows of any length": hdf5(_typed(h5py.vlen_dtype("f4"))),
    "records": hdf5(_typed([("a", "f4"), ("b", "i4")])),
    "complex numbers": hdf5(_typed("c8")),
    "long doubles": hdf5(_typed(np.longdouble)),
    "half floats": hdf5(_typed("f2")),
    "a file in a file": hdf5(lambda file, path: file.create_dataset("x", data=VALUES), userblock_size=1024),
}


# ------------------------------------------------------------------------------------------------------------ netCDF-3


def _nc(dimensions: list[tuple[str, int]], variables: list[tuple[str, list[int], int, int]], records: int = 0) -> bytes:
    """Classic netCDF: variables of (name, numbers of dimensions, type, stated size)."""

    def text(name: str) -> bytes:
        raw = name.encode()
        return struct.pack(">I", len(raw)) + raw + bytes(-len(raw) % 4)

    head = b"CDF\x01" + struct.pack(">I", records)
    head += struct.pack(">II", 10, len(dimensions)) + b"".join(text(n) + struct.pack(">I", k) for n, k in dimensions)
    head += bytes(8) + struct.pack(">II", 11, len(variables))
    parts = [text(n) + struct.pack(f">I{len(d)}I", len(d), *d) + bytes(8) for n, d, _, _ in variables]
    start = len(head) + sum(len(part) + 12 for part in parts)
    for part, (_, _, kind, size) in zip(parts, variables, strict=True):
        head += part + struct.pack(">III", kind, size, start)
    return head


def netcdf(content: bytes | Callable[[], bytes], tail: int = 4096) -> Make:
    def make(path: Path) -> Path:
        (path / "s.nc").write_bytes((content if isinstance(content, bytes) else content()) + bytes(tail))
        return path / "s.nc"

    return make


_SOUND = _nc([("t", 4), ("y", 5), ("x", 5)], [("v", [0, 1, 2], 5, 400)])
NETCDF3: dict[str, Make] = {
    "as it should be": netcdf(_SOUND),
    "long dimensions": netcdf(_nc([("t", 2**31 - 1), ("y", 2**31 - 1), ("x", 5)], [("v", [0, 1, 2], 5, 400)])),
    "dimensions by the thousand": netcdf(_nc([(f"d{i}", 2) for i in range(9999)], [("v", [0, 1], 5, 16)])),
    "axes by the thousand": netcdf(_nc([("t", 2)], [("v", [0] * 9999, 5, 16)])),
    "variables by the thousand": netcdf(_nc([("t", 2)], [(f"v{i}", [0, 0], 5, 16) for i in range(5000)])),
    "a dimension that is not there": netcdf(_nc([("t", 2)], [("v", [0, 7], 5, 16)])),
    "records by the billion": netcdf(_nc([("t", 0), ("x", 5)], [("v", [0, 1], 5, 20)], records=2**31 - 1)),
    "records of nothing": netcdf(_nc([("t", 0), ("x", 0)], [("v", [0, 1], 5, 0)], records=2**31 - 1)),
    "records that are streamed": netcdf(_nc([("t", 0), ("x", 5)], [("v", [0, 1], 5, 20)], records=2**32 - 1)),
    "two that count records": netcdf(_nc([("t", 0), ("u", 0)], [("v", [0, 1], 5, 20)], records=3)),
    "a type that is none": netcdf(_nc([("t", 4), ("x", 5)], [("v", [0, 1], 99, 80)])),
    "variables without end": netcdf(_SOUND.replace(struct.pack(">II", 11, 1), struct.pack(">II", 11, 2**31 - 1))),
    "dimensions without end": netcdf(_SOUND.replace(struct.pack(">II", 10, 3), struct.pack(">II", 10, 2**31 - 1))),
    "a name without end": netcdf(_SOUND.replace(struct.pack(">I", 1) + b"t", struct.pack(">I", 2**31 - 1) + b"t", 1)),
    "a place beyond the end": netcdf(_SOUND[:-4] + struct.pack(">I", 2**31 - 1)),
    "a place before the beginning": netcdf(_SOUND[:-4] + struct.pack(">i", -400)),
    "one name for two": netcdf(_nc([("t", 4), ("t", 5)], [("v", [0, 1], 5, 80), ("v", [1, 0], 5, 80)])),
    "a name that is none": netcdf(_nc([("", 4), ("x", 5)], [("", [0, 1], 5, 80)])),
}

# ----------------------------------------------------------------------------------------------------------------- DCD


def _dcd(
    frames: int = 3,
    atoms: int = 4,
    *,
    claims: int | None = None,
    title: int = 2,
    fixed: int = 0,
    cell: int = 0,
    four: int = 0,
    mark: int = 84,
    magic: bytes = b"CORD",
    body: bytes | None = None,
) -> bytes:
    numbers = [frames if claims is None else claims, 0, 1, frames, 0, 0, 0, 0, fixed]
    head = magic + struct.pack("<9i", *numbers) + struct.pack("<f", 1.0) + struct.pack("<10i", cell, four, *[0] * 7, 24)
    made = struct.pack("<i", mark) + head + struct.pack("<i", mark)
    titles = struct.pack("<i", title) + b" " * (80 * 2)
    made += struct.pack("<i", len(titles)) + titles + struct.pack("<i", len(titles))
    made += struct.pack("<iii", 4, atoms, 4)
    axis = struct.pack("<i", 4 * 4) + np.arange(4, dtype="<f4").tobytes() + struct.pack("<i", 4 * 4)
    return made + (axis * 3 * frames if body is None else body)


def dcd(**how: Any) -> Make:
    def make(path: Path) -> Path:
        (path / "s.dcd").write_bytes(_dcd(**how))
        return path / "s.dcd"

    return make


DCD: dict[str, Make] = {
    "as it should be": dcd(),
    "frames by the billion": dcd(claims=2**31 - 1),
    "frames below none": dcd(claims=-1),
    "atoms by the billion": dcd(atoms=2**31 - 1),
    "atoms below none": dcd(atoms=-4),
    "no atoms": dcd(atoms=0),
    "more atoms than there are": dcd(atoms=8),
    "fewer atoms than there are": dcd(atoms=1),
    "titles by the billion": dcd(title=2**31 - 1),
    "titles below none": dcd(title=-1),
    "all atoms fixed": dcd(fixed=4),
    "more atoms fixed than there are": dcd(fixed=9),
    "atoms fixed below none": dcd(fixed=-9),
    "a cell that is not there": dcd(cell=1),
    "a fourth dimension": dcd(four=1),
    "a wrong mark": dcd(mark=85),
    "a mark without end": dcd(mark=2**31 - 1),
    "no frames": dcd(frames=0),
    "frames of marks alone": dcd(body=struct.pack("<i", 16) * 36),
    "a frame without end": dcd(body=struct.pack("<i", 2**31 - 1) * 60),
    "a frame below none": dcd(body=struct.pack("<i", -16) * 60),
    "values that are none": dcd(body=(struct.pack("<i", 16) + b"\xff" * 16 + struct.pack("<i", 16)) * 9),
}

# ---------------------------------------------------------------------------------------------------------------- TIFF


def tiff(xml: str | None = None, values: Any = VALUES[..., 0], **options: Any) -> Make:
    def make(path: Path) -> Path:
        secret(path)
        tifffile.imwrite(path / "secret.ome.tif", SECRET, ome=True)
        (path / "secret.txt").write_text("77")
        with tifffile.TiffWriter(path / "s.ome.tif", ome=False) as file:
            for i, page in enumerate(values):
                file.write(
                    page,
                    description=xml.replace("HERE", str(path)) if xml and not i else None,
                    metadata=None,
                    **options,
                )
        return path / "s.ome.tif"

    return make


def ome(inner: str = "", sizes: str = 'SizeX="10" SizeY="12" SizeC="1" SizeZ="1" SizeT="12"', before: str = "") -> str:
    return (
        f'<?xml version="1.0"?>{before}<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">'
        f'<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" {sizes}>{inner}'
        f"</Pixels></Image></OME>"
    )


_LAUGHS = "<!DOCTYPE OME [<!ENTITY a0 'ha'>" + "".join(
    f"<!ENTITY a{i} '{(chr(38) + f'a{i - 1};') * 10}'>" for i in range(1, 12)
)
_QUADRATIC = f"<!DOCTYPE OME [<!ENTITY a '{'x' * 50000}'>]>"
_OUTSIDE = '<!DOCTYPE OME [<!ENTITY a SYSTEM "file://HERE/secret.txt">]>'
_DTD = '<!DOCTYPE OME SYSTEM "file://HERE/secret.dtd">'
_OTHER = '<TiffData FirstT="0" IFD="0" PlaneCount="12"><UUID FileName="secret.ome.tif">urn:uuid:1</UUID></TiffData>'


def _ifd(path: Path, change: Callable[[bytearray, int], None]) -> Path:
    """Change the first directory of a classic little-endian TIFF."""
    content = bytearray(path.read_bytes())
    (at,) = struct.unpack_from("<I", content, 4)
    change(content, at)
    path.write_bytes(bytes(content))
    return path


def tagged(tag: int, kind: int | None, count: int | None, value: int | None, **options: Any) -> Make:
    def make(path: Path) -> Path:
        tifffile.imwrite(path / "s.tif", VALUES, photometric="rgb", metadata=None, **options)

        def change(content: bytearray, at: int) -> None:
            (n,) = struct.unpack_from("<H", content, at)
            for entry in range(at + 2, at + 2 + 12 * n, 12):
                found, k, c, v = struct.unpack_from("<HHII", content, entry)
                if found == tag:
                    now = (k if kind is None else kind, c if count is None else count, v if value is None else value)
                    struct.pack_into("<HHII", content, entry, found, *now)
                    return
            raise AssertionError(tag)

        return _ifd(path / "s.tif", change)

    return make


def _pages_in_a_circle(path: Path) -> Path:
    tifffile.imwrite(path / "s.tif", VALUES, photometric="rgb", metadata=None, compression="zlib")

    def change(content: bytearray, at: int) -> None:
        (n,) = struct.unpack_from("<H", content, at)
        (second,) = struct.unpack_from("<I", content, at + 2 + 12 * n)
        (m,) = struct.unpack_from("<H", content, second)
        struct.pack_into("<I", content, second + 2 + 12 * m, at)

    return _ifd(path / "s.tif", change)


def _deflated_page(path: Path) -> Path:
    """A page that claims 360 bytes and whose deflated content is 256 MB."""
    tifffile.imwrite(path / "s.tif", VALUES, photometric="rgb", metadata=None, compression="zlib")
    content = bytearray((path / "s.tif").read_bytes())
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(1 << 8)) + packer.flush()
    (at,) = struct.unpack_from("<I", content, 4)
    (n,) = struct.unpack_from("<H", content, at)
    for entry in range(at + 2, at + 2 + 12 * n, 12):
        (tag,) = struct.unpack_from("<H", content, entry)
        if tag == 273:
            struct.pack_into("<HII", content, entry + 2, 4, 1, len(content))
        elif tag == 279:
            struct.pack_into("<HII", content, entry + 2, 4, 1, len(bomb))
    (path / "s.tif").write_bytes(bytes(content) + bomb)
    return path / "s.tif"


TIFF: dict[str, Make] = {
    "OME as it should be": tiff(ome('<TiffData IFD="0" PlaneCount="12"/>')),
    "entities that grow": tiff(ome("&a11;", before=_LAUGHS + "]>")),
    "entities that repeat": tiff(ome("&a;" * 50000, before=_QUADRATIC)),
    "an entity outside": tiff(ome("&a;", before=_OUTSIDE)),
    "a definition outside": tiff(ome(before=_DTD)),
    "pages of another file": tiff(ome(_OTHER)),
    "planes by the billion": tiff(ome(sizes='SizeX="10" SizeY="12" SizeC="1" SizeZ="99999" SizeT="99999"')),
    "planes below none": tiff(ome(sizes='SizeX="10" SizeY="12" SizeC="1" SizeZ="-5" SizeT="12"')),
    "planes of no number": tiff(ome(sizes='SizeX="NaN" SizeY="inf" SizeC="1" SizeZ="1" SizeT="1e9"')),
    "wide planes": tiff(ome(sizes='SizeX="2147483647" SizeY="2147483647" SizeC="1" SizeZ="1" SizeT="12"')),
    "numbers of a thousand digits": tiff(ome(sizes=f'SizeX="10" SizeY="12" SizeC="1" SizeZ="1" SizeT="{"9" * 5000}"')),
    "a first page far off": tiff(ome('<TiffData IFD="2147483647" PlaneCount="2147483647"/>')),
    "directories without end": tiff(ome("<TiffData/>" * 20000)),
    "elements in elements": tiff(ome("<a>" * 20000 + "</a>" * 20000)),
    "XML that breaks off": tiff(ome()[:150]),
    "a claim of samples": tagged(277, 3, 1, 65535, compression="zlib"),
    "a claim of bits": tagged(258, 3, 1, 64),
    "a claim of rows": tagged(257, 4, 1, 2**31 - 1, compression="zlib"),
    "a claim of columns": tagged(256, 4, 1, 2**32 - 1, compression="zlib"),
    "strips by the billion": tagged(273, 4, 2**31 - 1, None, compression="zlib"),
    "strips of the whole address space": tagged(279, 4, 1, 2**32 - 1, compression="zlib"),
    "rows of a strip": tagged(278, 4, 1, 0),
    "pages in a circle": _pages_in_a_circle,
    "a bomb in a page": _deflated_page,
}

# ------------------------------------------------------------------------------------------------------------ archives


def _bomb(size: int) -> bytes:
    return encoded(pixels(), "PNG") + bytes(size)


def _zip_changed(old: bytes, new: bytes) -> Make:
    return _changed(lambda path: write_zip(path / "s.zip", GOOD), old, new)


def _overlapping(path: Path) -> Path:
    """A thousand entries that are one member, which deflates to 50 MB."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", _bomb(50 << 20))
    content = packed.getvalue()
    end = content.rindex(b"PK\x05\x06")
    size, start = struct.unpack_from("<II", content, end + 12)
    entry, n = content[start : start + size], 1000
    tail = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, n, n, size * n, start, 0)
    (path / "s.zip").write_bytes(content[:start] + entry * n + tail)
    return path / "s.zip"


def _zip_of(*members: tuple[str, int, bytes], method: int = zipfile.ZIP_DEFLATED) -> Make:
    def make(path: Path) -> Path:
        with zipfile.ZipFile(path / "s.zip", "w", method) as archive:
            for name, mode, payload in members:
                info = zipfile.ZipInfo(name)
                info.external_attr, info.create_system, info.compress_type = mode << 16, 3, method
                with_warnings(archive.writestr, info, payload)
        return path / "s.zip"

    return make


def with_warnings(call: Callable[..., Any], *given: Any) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that there are twice
        call(*given)


PNG = encoded(pixels(), "PNG")
ZIP: dict[str, Make] = {
    "paths that climb": _zip_of(
        ("a.png", 0o644, PNG), ("../b.png", 0o644, PNG), ("/c.png", 0o644, PNG), ("d/../../e.png", 0o644, PNG)
    ),
    "paths of another system": _zip_of(("a.png", 0o644, PNG), ("..\\b.png", 0o644, PNG), ("C:\\c.png", 0o644, PNG)),
    "links": _zip_of(("a.png", 0o644, PNG), ("b.png", 0o120777, b"/etc/passwd"), ("c.png", 0o120777, b"a.png")),
    "devices": _zip_of(("a.png", 0o644, PNG), ("b.png", 0o020666, b""), ("c.png", 0o010666, b"")),
    "one name for two": _zip_of(("a.png", 0o644, PNG), ("a.png", 0o644, encoded(pixels(3), "PNG"))),
    "names that differ by case": _zip_of(("a.png", 0o644, PNG), ("A.png", 0o644, PNG)),
    "names of lines": _zip_of(("a\nb\x1b[31m.png", 0o644, b"x"), ("\u202egnp.a.png", 0o644, PNG)),
    "a bomb behind a picture": _zip_of(("a.png", 0o644, _bomb(20 << 20))),
    "a bomb that is no picture": _zip_of(("a.png", 0o644, PNG), ("b.png", 0o644, bytes(20 << 20))),
    "members that overlap": _overlapping,
    "a zip in a zip": _zip_of(("a.png", 0o644, PNG), ("b.zip", 0o644, PNG), ("c.png.zip", 0o644, PNG)),
    "members by the billion": _changed(
        lambda p: write_zip(p / "s.zip", GOOD), struct.pack("<HH", 4, 4), struct.pack("<HH", 65535, 65535)
    ),
    "bz2": _zip_of(("a.png", 0o644, PNG), method=zipfile.ZIP_BZIP2),
    "lzma": _zip_of(("a.png", 0o644, PNG), method=zipfile.ZIP_LZMA),
}


def _tar_of(*members: tuple[tarfile.TarInfo, bytes], compression: str = "") -> Make:
    suffix = f".tar.{compression}" if compression else ".tar"
    return lambda path: write_tar(path / f"s{suffix}", [*(member(*one) for one in GOOD.items()), *members], compression)


def _pax(**headers: str) -> Make:
    def make(path: Path) -> Path:
        with tarfile.open(path / "s.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            for i, (name, payload) in enumerate(GOOD.items()):
                info = tarfile.TarInfo(name)
                info.size = len(payload)
                info.pax_headers = headers if i == 1 else {}
                archive.addfile(info, io.BytesIO(payload))
        return path / "s.tar"

    return make


def _long_header(kind: bytes, size: int, opener: Any = gzip) -> Make:
    """A header of a compressed archive whose text is as long as this, all zeros."""

    def make(path: Path) -> Path:
        info = tarfile.TarInfo("x")
        info.type, info.size = kind, size
        with opener.open(path / f"s.tar.{'gz' if opener is gzip else 'xz'}", "wb") as file:
            file.write(info.tobuf(tarfile.GNU_FORMAT))
            for _ in range(size >> 20):
                file.write(bytes(1 << 20))
            file.write(bytes(1024))
        return path / f"s.tar.{'gz' if opener is gzip else 'xz'}"

    return make


def _gz_of_zeros(path: Path) -> Path:
    """An archive with one picture, and 64 MB of padding behind its end."""
    write_tar(path / "plain.tar", GOOD)
    with gzip.open(path / "s.tar.gz", "wb") as file:
        file.write((path / "plain.tar").read_bytes())
        for _ in range(1 << 6):
            file.write(bytes(1 << 20))
    (path / "plain.tar").unlink()
    return path / "s.tar.gz"


def _huge(name: str, size: int) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = size
    return info, b""


def _tar_claims(size: int) -> Make:
    def make(path: Path) -> Path:
        info = tarfile.TarInfo("x.png")
        info.size = size
        (path / "s.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + PNG + bytes(4096))
        return path / "s.tar"

    return make


TAR: dict[str, Make] = {
    "paths that climb": _tar_of(member("../x.png", PNG), member("/x.png", PNG), member("a/../../x.png", PNG)),
    "links": _tar_of(
        member("x.png", b"", tarfile.SYMTYPE, "/etc/passwd"), member("y.png", b"", tarfile.LNKTYPE, "x.png")
    ),
    "links in a circle": _tar_of(
        member("x.png", b"", tarfile.SYMTYPE, "y.png"), member("y.png", b"", tarfile.SYMTYPE, "x.png")
    ),
    "devices": _tar_of(member("x.png", b"", tarfile.CHRTYPE), member("y.png", b"", tarfile.FIFOTYPE)),
    "one name for two": _tar_of(member("img/000001.jpg", encoded(pixels(9), "JPEG"))),
    "a path of pax that climbs": _pax(path="../../x.jpg"),
    "a size of pax": _pax(size="99999999999999"),
    "a size of pax below none": _pax(size="-1"),
    "a sparse file of pax": _pax(
        **{
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.realsize": "99999999999",
            "GNU.sparse.name": "x.jpg",
        }
    ),
    "a sparse map of pax": _pax(**{"GNU.sparse.map": "0,99999999999,1,1", "GNU.sparse.size": "99999999999"}),
    "a long name without end": _long_header(tarfile.GNUTYPE_LONGNAME, 20 << 20),
    "a long header without end": _long_header(tarfile.XHDTYPE, 20 << 20),
    "a long name of 20 MB": _long_header(tarfile.GNUTYPE_LONGNAME, 100 << 20, lzma),
    "a global header of 20 MB": _long_header(tarfile.XGLTYPE, 20 << 20),
    "much padding": _gz_of_zeros,
    "a member of exabytes": _tar_claims(2**62),
    "a member of terabytes": _tar_claims(2**40),
    "a bomb behind a picture": _tar_of(member("x.png", _bomb(20 << 20)), compression="gz"),
    "a bomb that is no picture": _tar_of(member("x.bin", bytes(20 << 20)), compression="gz"),
}

STRUCTURES: dict[str, Make] = {
    f"{form}: {name}": make
    for form, makes in (("HDF5", HDF5), ("netCDF-3", NETCDF3), ("DCD", DCD), ("TIFF", TIFF), ("zip", ZIP), ("tar", TAR))
    for name, make in makes.items()
}
