"""Sources of every format, damaged at random but repeatably."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.storage.sources.made_sources import (
    encoded,
    pixels,
    write_folder,
    write_idx,
    write_lsun,
    write_tar,
    write_zip,
)
from tests.storage.sources.source_damage import damaged

Rng = np.random.Generator


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


def _dcd(path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a trajectory in memory lacks
        import MDAnalysis

        atoms = (
            MDAnalysis.Universe.empty(20, trajectory=True)
            .load_new(_values().reshape(12, -1)[:, :60].reshape(12, 20, 3))
            .atoms
        )
        with MDAnalysis.Writer(str(path / "s.dcd"), 20) as file:
            for _ in atoms.universe.trajectory:
                file.write(atoms)
    return path / "s.dcd"


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
    "DCD": _dcd,
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
        path.write_bytes(damaged(path.read_bytes(), path.name, form, rng))
        if "Zarr" in form and path.name not in ("zarr.json", ".zarray", ".zattrs") and rng.random() < 0.2:
            path.unlink()
            path.mkdir()
    return form, source
