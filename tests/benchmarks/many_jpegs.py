"""One pass over a stack of any size that keeps JPEG files, beside libjpeg-turbo alone on the same files.

    python tests/benchmarks/many_jpegs.py --gigabytes 200 > pass.jsonl    (two processors: about 25 minutes)

The files are textures of quality 90. Some thousand of them are ingested as they are, which is measured. All further
shards of the stack are hard links to theirs: 200 GB take half a gigabyte of the disk, and are read from the page cache.
Two threads read all samples, as tasks of a fit do. The pass is divided into rounds. Before each of them, as many
threads decode the files from memory with libjpeg-turbo alone. Processor seconds are those for a gigabyte of JPEG.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from dpca.storage import ReadOptions, Stack, create_synthetic, ingest, open_stack
from dpca.storage.arrays.arrays import create_array, create_root
from dpca.storage.arrays.layout import Layout
from dpca.storage.integrity.manifest import write_manifest
from dpca.storage.readers import open_reader
from dpca.storage.remote.tasks import run_in_order
from dpca.storage.stack import STACK_KIND, STACK_VERSION
from tests.benchmarks.sides import Clock, Line, at_least, print_line, ratio_of
from tests.benchmarks.speed.ingest_speed import read_samples, write_archive

_THREADS = 2
#: Textures, and how often they are ingested: together enough for shards of the usual size.
_TEXTURES, _TIMES = 2400, 5
_SHARDS_OF_A_TASK = 16


def lengthened(stack: Stack, target: Path, times: int) -> Stack:
    """Return a stack with the complete shards of another one, several times, without a copy of them."""
    samples = stack.samples
    assert samples.shards is not None
    n_shards = stack.n_samples // samples.shards[0]
    shape = (n_shards * times * samples.shards[0], *stack.sample_shape)
    facts: dict[str, Any] = {"axes": stack.axes, "data_range": stack.data_range, "source": {"kind": "links"}}
    root = create_root(target, kind=STACK_KIND, fingerprint="links", version=STACK_VERSION, **facts)
    layout = Layout(samples.chunks, samples.shards)
    array = create_array(root, "samples", shape, stack.dtype, layout, stack.axes, codec="jpeg")
    inside = (0,) * len(stack.sample_shape)
    for i in range(n_shards * times):
        link = target / "samples" / array.metadata.encode_chunk_key((i, *inside))
        link.parent.mkdir(parents=True)
        os.link(Path(stack.array_path, array.metadata.encode_chunk_key((i % n_shards, *inside))), link)
    write_manifest(target)
    return open_stack(target)


def lines(folder: Path, gigabytes: float, side: int, rounds: int) -> Iterator[Line]:
    """Ingest, and compare a pass with libjpeg-turbo."""
    shape = (side, side, 3)
    textures = create_synthetic(folder / "decoded.zarr", "textures", n_samples=_TEXTURES, sample_shape=shape)
    source = write_archive(folder / "textures.tar", (np.asarray(one) for one in textures.samples)) * _TIMES
    payloads = [payload for payload in open_reader(source[:1]).fetch(range(_TEXTURES)) if isinstance(payload, bytes)]
    sizes, clock = np.array(list(map(len, payloads))), Clock()
    keep = partial(ingest, source, folder / "files.zarr", reading=ReadOptions(keep_jpegs=True))
    files = clock("ingest", keep)
    in_shards = files.n_samples // files.samples.shards[0] * files.samples.shards[0]
    once = int(np.resize(sizes, in_shards).sum())
    stack = lengthened(files, folder / "links.zarr", max(1, round(gigabytes * 1e9 / once)))
    step = _SHARDS_OF_A_TASK * files.samples.shards[0]
    spans = [(start, min(start + step, stack.n_samples)) for start in range(0, stack.n_samples, step)]
    found = []
    for part in np.array_split(np.array(spans), min(rounds, len(spans))):
        turn = Clock()
        turn("turbo", lambda: _at_once(_decode, [(payloads, shape)] * _THREADS))
        turn("pass", lambda part=part: _at_once(read_samples, [(stack.path, *span) for span in part.tolist()]))
        read = once * (part[-1, 1] - part[0, 0]) / in_shards
        found.append(
            {
                "turbo": turn.seconds["turbo"] / (_THREADS * sizes.sum()) * 1e9,
                "ingest": clock.seconds["ingest"] / (_TIMES * sizes.sum()) * 1e9,
                "pass": turn.seconds["pass"] / read * 1e9,
            }
        )
    total = once * stack.n_samples / in_shards
    where = f"{total / 1e9:.3g} GB in JPEGs of {shape}, {sizes.mean():,.0f} bytes each"
    for limit, parts in ((0.8, ["ingest", "pass"]), (None, ["pass"])):
        name = f"libjpeg-turbo, many kept JPEGs, {' and '.join(parts)}"
        yield at_least(limit, name=name, where=where, n=stack.n_samples, **ratio_of(found, ["turbo"], parts))


def _at_once(work: Any, calls: Sequence[tuple[Any, ...]]) -> None:
    for _ in run_in_order(work, calls, threads=_THREADS):
        pass


def _decode(payloads: Sequence[bytes], shape: tuple[int, ...]) -> None:
    pixels = np.empty(shape, np.uint8)
    for payload in payloads:
        simplejpeg.decode_jpeg(payload, "RGB", buffer=pixels)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0, metavar="GB", help="of JPEG (default: %(default)s)")
    parser.add_argument("--side", type=int, default=256, metavar="N", help="pixels (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="parts of the pass (default: %(default)s)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for line in lines(Path(folder).resolve(), options.gigabytes, options.side, options.rounds):
            print_line(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
