"""Compare a compressed store with other codecs: bytes and errors on samples of the original stack."""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numcodecs import Blosc  # type: ignore[import-untyped]
from PIL import Image, features

from dpca.engine.sources.sampling import chosen_samples, spread_samples
from dpca.engine.sources.source import as_source
from dpca.engine.sources.tiled import TiledStack
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import to_pixels
from dpca.kernels.quality import mse_per_sample, psnr_from_mse
from dpca.representation.compressed.compressed import TiledCompressed, open_compressed
from dpca.representation.compressed.compressed_form import pixels_of
from dpca.storage.disk import folder_bytes
from dpca.storage.errors import DataError
from dpca.storage.stack import Stack

# Number of photographs, spread over the stack; for other arrays, bytes of consecutive samples.
_PICTURES, _ARRAY_BYTES = 100, 2**26
_QUALITIES = (10, 20, 35, 50, 65, 75, 85, 92, 96)
_DECIBELS = tuple(range(24, 52, 3))
_DISTANCES = (15, 10, 6, 4, 2.5, 1.5, 1, 0.6, 0.3)
# Largest errors in units of the data range.
_TOLERANCES = tuple(10.0**-x for x in np.arange(1, 5.01, 0.5))

# A function that encodes samples with one setting; it returns their bytes and the decoded samples.
_Codec = Callable[[Array, float], tuple[int, Array]]


@dataclass(frozen=True)
class Point:
    """The result of a codec with one setting.

    Attributes
    ----------
    codec : str
    setting : float or None
        Quality, decibels, distance or largest error, depending on the codec.
    bytes : float
        Mean bytes of a sample.
    psnr : float
        Decibels, from the mean error; infinite if lossless.
    """

    codec: str
    setting: float | None
    bytes: float
    psnr: float


@dataclass(frozen=True)
class Comparison:
    """A store and other codecs.

    Attributes
    ----------
    store : Point
        Bytes of the store divided by its number of samples, and its error on the samples that were compared.
    others : list of Point
        By codec, coarse to fine.
    missing : dict
        For each codec that is left out, the reason and the remedy.
    data_range : (float, float)
        Lowest and highest value, for PSNR.
    """

    store: Point
    others: list[Point]
    missing: dict[str, str]
    data_range: tuple[float, float]

    def at_equal_error(self) -> dict[str, float | None]:
        """Return the bytes of a sample at the PSNR of the store, for each codec, interpolated between its settings.

        None if the PSNR of the store is outside their range. A codec with one setting has its own number of bytes.
        """
        found: dict[str, float | None] = {}
        for name in dict.fromkeys(point.codec for point in self.others):
            points = sorted((p for p in self.others if p.codec == name), key=lambda p: p.psnr)
            psnr = [p.psnr for p in points]
            found[name] = None
            if len(points) == 1:
                found[name] = points[0].bytes
            elif psnr[0] <= self.store.psnr <= psnr[-1]:
                found[name] = math.exp(np.interp(self.store.psnr, psnr, [math.log(p.bytes) for p in points]))
        return found


def compare_store(path: str, stack: Stack, *, sample: int | None = None) -> Comparison:
    """Measure other codecs on samples of the stack that a compressed store was made from.

    Images of 8 bits are encoded one by one with JPEG, JPEG 2000, WebP, AVIF and JPEG XL. Samples of all kinds are
    encoded as one array with zfp and SZ3, which have an error bound, and with Blosc, which is lossless. Of a store with
    tiles, tiles are compared instead of samples, with the bytes that as many values of a sample take. Codecs with an
    error bound encode the values by which the store fills missing ones, and no mask. Errors are those of values that
    are there.

    Parameters
    ----------
    path : str
        Compressed store.
    stack : Stack
        The stack that it was made from.
    sample : int, optional
        Number of samples; default 100 photographs, or 64 MiB of other samples or of tiles.

    Raises
    ------
    DataError
        If the stack has another shape or type than the store.
    StoreError
        If this is not a compressed store, or it is damaged.
    """
    store = open_compressed(path)
    if store.shape != (stack.n_samples, *stack.sample_shape) or store.dtype != stack.dtype:
        raise DataError(
            f"'{path}' has samples of {store.shape} {store.dtype} but '{stack.path}' has "
            f"{(stack.n_samples, *stack.sample_shape)} {stack.dtype}: give the stack that the store was made from"
        )
    (low, high), entries = store.facts["data_range"], store.entries
    tiled = isinstance(store, TiledCompressed)
    source = as_source(TiledStack.of(stack, store.tiles) if isinstance(store, TiledCompressed) else stack)
    (n, *shape), times = source.shape, math.prod(store.shape[1:]) / math.prod(source.shape[1:])
    count = n if sample is None else min(sample, n)
    pictures = store.dtype == np.uint8 and (len(shape) == 2 or (len(shape) == 3 and shape[-1] == 3))
    if (tiled or not pictures) and not sample:
        count = max(1, min(count, _ARRAY_BYTES // (entries.nbytes // n)))
    if pictures:
        count = count if sample else min(count, _PICTURES)
        chosen = spread_samples(n, count, np.random.default_rng(0))
    else:
        chosen = np.arange(count) + (n - count) // 2
    source.with_gaps = store.has_gaps
    given = samples = chosen_samples(source, chosen)
    missing = ~np.isfinite(given) if store.has_gaps else np.zeros(given.shape, bool)
    if store.has_gaps:
        filling = entries.filled(chosen, tuple((0, length) for length in shape))
        samples = np.where(missing, filling, given)

    def point(name: str, setting: float | None, size: float, decoded: Array) -> Point:
        if decoded.dtype != samples.dtype:
            decoded = to_pixels(np.array(decoded), *pixels_of(store.facts))
        decoded = np.where(missing, samples, decoded) if store.has_gaps else decoded
        errors = mse_per_sample(samples, decoded, data_range=high - low)
        mse = errors.sum() / max(float((~missing).reshape(len(missing), -1).mean(axis=1).sum()), 1 / missing.size)
        return Point(name, setting, size, float(psnr_from_mse(np.array(mse))))

    ours = point("this store", None, folder_bytes(path) / store.shape[0], entries[chosen])
    others, lacking = [], {}
    tolerances = [x * (high - low) for x in _TOLERANCES]
    for name, codec, settings in _codecs(pictures, tolerances, store.facts.get("max_error")):
        if isinstance(codec, str):
            lacking[name] = codec
            continue
        for setting in settings:
            size, decoded = codec(samples, setting)
            others.append(point(name, setting, times * size / len(samples), decoded))
    blosc = Blosc("zstd", clevel=5, shuffle=Blosc.BITSHUFFLE)
    packed = sum(len(blosc.encode(np.ascontiguousarray(given[i : i + 16]))) for i in range(0, len(given), 16))
    others.append(point("blosc (zstd)", None, times * packed / len(samples), samples))
    return Comparison(ours, others, lacking, (low, high))


def _codecs(
    pictures: bool, tolerances: Sequence[float], promised: float | None
) -> Iterator[tuple[str, _Codec | str, Sequence[float]]]:
    """Yield the name, the codec (or why it is missing) and the settings."""
    try:
        more: Any = importlib.import_module("imagecodecs")
    except ImportError:
        more = None
    install = 'needs imagecodecs, which is not installed: pip install "dask-dpca[compare]"'
    if pictures:
        for name, kind, feature, settings in (
            ("JPEG", "JPEG", "jpg", _QUALITIES),
            ("JPEG 2000", "JPEG2000", "jpg_2000", _DECIBELS),
            ("WebP", "WEBP", "webp", _QUALITIES),
            ("AVIF", "AVIF", "avif", _QUALITIES),
        ):
            without = "is not part of this Pillow: pip install --upgrade pillow"
            yield name, _still(kind) if features.check(feature) else without, settings
        there = more is not None and more.JPEGXL.available
        yield "JPEG XL", (lambda x, d: _jpeg_xl(more, x, d)) if there else install, _DISTANCES
    for name, short, keyword, mode in (("zfp", "zfp", "level", "a"), ("SZ3", "sz3", "abs", "abs")):
        if more is None or not getattr(more, short.upper()).available:
            yield name, install, ()
            continue
        codec = _bounded(getattr(more, f"{short}_encode"), getattr(more, f"{short}_decode"), keyword, mode)
        yield name, codec, tolerances
        if promised is not None:
            yield f"{name} at the same largest error", codec, (promised,)


def _still(kind: str) -> _Codec:
    """Return a codec that encodes pictures one by one with Pillow."""

    def coded(pixels: Array, quality: float) -> tuple[int, Array]:
        how: dict[str, dict[str, Any]] = {
            "JPEG": {"quality": int(quality), "optimize": True},
            "JPEG2000": {"quality_mode": "dB", "quality_layers": [quality], "irreversible": True},
        }
        size, decoded = 0, np.empty_like(pixels)
        for picture, back in zip(pixels, decoded, strict=True):
            file, image = io.BytesIO(), Image.fromarray(picture)
            image.save(file, kind, **how.get(kind, {"quality": int(quality)}))
            size += len(file.getvalue())
            back[...] = np.asarray(Image.open(file).convert(image.mode))
        return size, decoded

    return coded


def _jpeg_xl(imagecodecs: Any, pixels: Array, distance: float) -> tuple[int, Array]:
    files = [imagecodecs.jpegxl_encode(picture, distance=distance) for picture in pixels]
    decoded = [imagecodecs.jpegxl_decode(file).reshape(pixels.shape[1:]) for file in files]
    return sum(map(len, files)), np.stack(decoded)


def _bounded(encode: Any, decode: Any, keyword: str, mode: str) -> _Codec:
    """Return a codec that encodes all samples as one array of at most four axes, with an error bound."""

    def coded(samples: Array, largest: float) -> tuple[int, Array]:
        few = samples.reshape(-1, *samples.shape[max(1, samples.ndim - 3) :])
        wide = samples.dtype.itemsize > 4 or (samples.dtype.kind != "f" and samples.dtype.itemsize > 2)
        values = np.ascontiguousarray(few, np.float64 if wide else np.float32)
        file = encode(values, mode=mode, **{keyword: largest})
        if mode == "a":
            return len(file), decode(file).reshape(samples.shape)
        return len(file), decode(file, shape=values.shape, dtype=values.dtype).reshape(samples.shape)

    return coded
