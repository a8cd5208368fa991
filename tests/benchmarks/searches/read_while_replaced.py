"""Read stores while they are replaced: before each access of a reader, and while another process appends.

    python tests/benchmarks/searches/read_while_replaced.py --reads 1000

First a store of each kind takes the place of another one before each access of each way of reading, swapped in one
step and by two renames. Then a process appends samples in a loop, and readers open the store, read it by ``dpca::``
and keep it open. Readers must get the samples of one store, or learn that it was replaced, and that only where they
had opened it before. Prints what went wrong, and a line a part; exits with 1 if anything did.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import zarr

sys.path.insert(0, str(Path(__file__).parents[3]))

import dpca
from dpca import CellPCA
from dpca.engine.clusters.cluster import open_client
from dpca.jobs import append_store, encode_store
from dpca.storage import ReplacedError, StoreError, ingest, open_stack, verify
from dpca.storage.run import Run
from tests.conftest import smooth_images
from tests.trust.damage import make_stores
from tests.trust.replaced import OPENED, READ, Replacement

FIRST, PART, PARTS, PROMISE = 40, 10, 6, 3
WAYS = ("opened anew", "a URL", "kept open", "verified")


def before_each_access(folder: Path, every: int) -> int:
    """Replace stores before every so many accesses; return how often something was wrong."""
    (made := folder / "made").mkdir()
    with open_client(workers=1, memory="1GB") as client:
        make_stores(made, client)
    n = wrong = 0
    for gap in (False, True):
        for opens, kinds in ((True, OPENED), (False, READ)):
            for store, ways in kinds.items():
                (scratch := folder / f"{gap}-{opens}-{store}").mkdir()
                stores = Replacement(made, scratch, store, gap=gap)
                for way, read in ways.items():
                    expected = stores.expected(read)
                    for i in range(1, stores.accesses(read) + 1, every):
                        found = stores.wrong(read, i, opens=opens, expected=expected)
                        n, wrong = n + 1, wrong + (found is not None)
                        if found is not None:
                            print(f"{store}, {way}, {'two renames' if gap else 'swapped'} at {i}: {found}", flush=True)
    print(f"{n:,} replacements before an access: {wrong} wrong", flush=True)
    return wrong


def append_for_ever(folder: str, ended: Event) -> None:
    """Append parts to a store, and encode it anew when it has them all."""
    here, turns = Path(folder), 0
    while not ended.is_set():
        for part in range(PARTS):
            append_store(here / "out.zarr", open_stack(here / f"part-{part}.zarr"), drift="accept")
            turns += 1
            if ended.is_set():
                break
        else:
            encode_store(
                open_stack(here / "first.zarr"),
                here / "model.zarr",
                here / "out.zarr",
                max_error=PROMISE,
                run=Run(overwrite=True),
            )
    print(f"the store was replaced {turns} times and more", flush=True)


def read_often(folder: str, way: str, n: int) -> Counter[str]:
    """Read a store in one way so often; return how it ended."""
    path, images = Path(folder) / "out.zarr", np.load(Path(folder) / "all.npy")
    found: Counter[str] = Counter()
    opened: Any = None

    def values() -> Any:
        nonlocal opened
        if way == "verified":
            return verify(path)
        if way != "kept open" or opened is None:
            opened = zarr.open_array(f"dpca::{path}", mode="r") if way == "a URL" else dpca.open_compressed(path)
        return opened[...]

    for _ in range(n):
        try:
            got = values()
        except ReplacedError:
            opened, ending = None, "replaced"
        except StoreError as error:
            print(f"{way}: {error}", flush=True)
            ending = "WRONG: told of damage"
        else:
            whole = not got if way == "verified" else np.abs(got.astype(int) - images[: len(got)]).max() <= PROMISE
            ending = "read" if whole else "WRONG: other values"
        found[ending] += 1
    return found


def while_it_grows(folder: Path, reads: int) -> int:
    """Read a store in processes while another one appends; return how often something was wrong."""
    images = smooth_images(FIRST + PARTS * PART, (24, 20, 3))
    np.save(folder / "all.npy", images)
    ends = [0, *range(FIRST, len(images) + 1, PART)]
    for i, (start, stop) in enumerate(pairwise(ends)):
        name = "first" if i == 0 else f"part-{i - 1}"
        np.save(folder / f"{name}.npy", images[start:stop])
        ingest(folder / f"{name}.npy", folder / f"{name}.zarr", run=Run(threads=1))
    CellPCA(12, cell_shape=8, shared=True).fit(folder / "first.zarr").save(folder / "model.zarr")
    encode_store(open_stack(folder / "first.zarr"), folder / "model.zarr", folder / "out.zarr", max_error=PROMISE)
    context = multiprocessing.get_context("spawn")
    ended = context.Event()
    writer = context.Process(target=append_for_ever, args=(str(folder), ended))
    writer.start()
    began, wrong = time.monotonic(), 0
    with context.Pool(2) as pool:
        endings = pool.starmap(read_often, [(str(folder), way, -(-reads // len(WAYS))) for way in WAYS], chunksize=1)
    ended.set()
    writer.join()
    for way, found in zip(WAYS, endings, strict=True):
        print(f"{way}: {dict(found)}")
        wrong += sum(count for ending, count in found.items() if ending.startswith("WRONG"))
    print(f"{reads:,} reads in {time.monotonic() - began:.0f} s: {wrong} wrong", flush=True)
    return wrong


def main() -> int:
    """Replace, read, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=1000)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="replace before every N-th access")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        (grown := Path(name) / "grown").mkdir()
        wrong = while_it_grows(grown, options.reads) + before_each_access(Path(name), options.every)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
