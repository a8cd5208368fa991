"""What ingesting JPEGs costs beside decoding them with libjpeg-turbo and writing their pixels to files.

    python tests/benchmarks/speed/ingest_speed.py --source lfw-deepfunneled-00.tar

The share of libjpeg-turbo is also measured for textures of 256 x 256 pixels and photographs of 1024 x 1024, both of
quality 90: of an ingest, of reading and decoding without storing anything, and of an ingest that keeps the files
together with one pass over its stack as fits read it.
"""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from skimage import data

from dpca.engine.sources.source import as_source
from dpca.storage import ReadOptions, create_synthetic, ingest, open_stack
from dpca.storage.images import decode
from dpca.storage.readers import open_reader
from tests.benchmarks.inputs import CELL, Inputs
from tests.benchmarks.sides import Clock, Line, alone, at_least, at_most, in_turn, ratio_of

_AT_ONCE = 512


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    n = inputs.stack.n_samples
    rounds = in_turn({"ingest": partial(_ingest, inputs), **bound(inputs)}, inputs.rounds)
    found = ratio_of(rounds, ["ingest"], ["turbo decode", "write files"])
    yield at_most(1.5, name="ingest", where=f"JPEGs of {inputs.stack.sample_shape}", n=n, **found)
    small, large, few = (24, 48, 6) if inputs.quick else (256, 1024, 150)
    shape = (small, small, 3)
    textures = create_synthetic(inputs.folder / "decoded.zarr", "textures", n_samples=16 * few, sample_shape=shape)
    sources = {
        "photographs": inputs.photographs,
        "textures": write_archive(inputs.folder / "textures.tar", (np.asarray(one) for one in textures.samples)),
        "large photographs": write_archive(inputs.folder / "large.tar", _large(large, few)),
    }
    for name, source in sources.items():
        yield from _shares(name, source, inputs)


def _shares(name: str, source: list[str], inputs: Inputs) -> Iterator[Line]:
    """Compare libjpeg-turbo alone, on JPEGs in memory, with all that an ingest does, and with reading and decoding."""
    reader = open_reader(source)
    payloads = [payload for payload in reader.fetch(range(len(reader))) if isinstance(payload, bytes)]
    pixels, rounds = decode(payloads[0]).copy(), []
    color = "RGB" if pixels.ndim == 3 else "GRAY"
    target = inputs.folder / "ingested.zarr"
    for _ in range(inputs.rounds):
        clock = Clock()
        clock("turbo", lambda: [simplejpeg.decode_jpeg(payload, color, buffer=pixels) for payload in payloads])
        clock("read and decode", partial(_read, source, pixels))
        clock("ingest", partial(ingest, source, target, cell_shape=CELL))
        shutil.rmtree(target)
        clock("ingest of files as they are", partial(ingest, source, target, reading=ReadOptions(keep_jpegs=True)))
        clock("pass over files as they are", partial(read_samples, target))
        shutil.rmtree(target)
        rounds.append(clock.seconds)
    size = round(sum(map(len, payloads)) / len(payloads))
    line = {"where": f"JPEGs of {pixels.shape}, {size:,} bytes each", "n": len(payloads)}
    kept = ["ingest of files as they are", "pass over files as they are"]
    for limit, parts in ((None, ["ingest"]), (None, ["read and decode"]), (0.8, kept), (None, kept[1:])):
        found = ratio_of(rounds, ["turbo"], parts)
        yield at_least(limit, name=f"libjpeg-turbo, {name}, {' and '.join(parts)}", **found, **line)


def read_samples(target: str | Path, first: int = 0, end: int | None = None) -> None:
    """Read samples of a stack as the tasks of a fit do; the default is all."""
    source = as_source(open_stack(target))
    end, whole, read = end or source.shape[0], tuple((0, length) for length in source.shape[1:]), source.reader()
    batch = np.empty((source.read_rows(whole), *source.shape[1:]), source.dtype)
    for start, stop in source.reads((first, end), whole):
        read((start, stop), whole, batch[: stop - start])


def _read(source: list[str], pixels: np.ndarray[Any, Any]) -> None:
    reader = open_reader(source)
    for start in range(0, len(reader), _AT_ONCE):
        for payload in reader.fetch(range(start, min(start + _AT_ONCE, len(reader)))):
            decode(payload, out=pixels)


def _large(side: int, n: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield a photograph and its reflections, side by side and shifted."""
    quarter = data.astronaut()[: side // 2, : side // 2]
    half = np.concatenate([quarter, quarter[:, ::-1]], 1)
    whole = np.concatenate([half, half[::-1]])
    return (np.roll(whole, 37 * i, (0, 1)) for i in range(n))


def write_archive(path: Path, images: Iterable[np.ndarray[Any, Any]]) -> list[str]:
    """Write JPEGs of quality 90."""
    with tarfile.open(path, "w") as archive:
        for i, pixels in enumerate(images):
            payload = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), 90, colorsubsampling="420")
            member = tarfile.TarInfo(f"{i:05d}.jpg")
            member.size = len(payload)
            archive.addfile(member, io.BytesIO(payload))
    return [str(path)]


def bound(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """Return what ingesting cannot do without."""
    return {"turbo decode": partial(_decode, inputs), "write files": partial(_write, inputs)}


def _ingest(inputs: Inputs) -> None:
    ingest(inputs.photographs, inputs.folder / "ingested.zarr", cell_shape=CELL)
    shutil.rmtree(inputs.folder / "ingested.zarr")


def _decode(inputs: Inputs) -> None:
    reader = open_reader(inputs.photographs)
    for start in range(0, len(reader), _AT_ONCE):
        for payload in reader.fetch(range(start, min(start + _AT_ONCE, len(reader)))):
            simplejpeg.decode_jpeg(payload)


def _write(inputs: Inputs) -> None:
    """Write files of the size of the stack's shards."""
    stack, made = inputs.stack, inputs.folder / "files"
    made.mkdir()
    rows = stack.samples.shards[0]
    pixels = np.ones((rows, *stack.sample_shape), stack.dtype)
    for start in range(0, stack.n_samples, rows):
        (made / str(start)).write_bytes(pixels[: stack.n_samples - start].data)
    shutil.rmtree(made)


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
