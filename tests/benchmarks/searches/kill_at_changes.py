"""Kill jobs on compressed stores before each of their changes to the file system; compare what comes out.

    python tests/benchmarks/searches/kill_at_changes.py --every 1

Encodes, appends (photographs; waves with times; a refit of all) and compresses with a report, on small data in forks of
this process. Each is killed with SIGKILL before its first change, its second one, and so on; the next run must leave
the store of an undisturbed one, byte for byte, and what is under the name meanwhile must be nothing, the store before,
or the new one. Prints a line a job; exits with 1 at a difference.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from dpca import CellPCA, Denoiser
from dpca.jobs import CompressionSettings, append_store, compress, encode_store
from dpca.storage import ingest, open_stack
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images
from tests.jobs.compressed.test_encode_sequences import drifting
from tests.storage.transaction.jobs_to_kill import in_a_child, kill_before_change, tree

MODEL = CellPCA(6, cell_shape=8, shared=True, random_state=0)
SETTINGS = CompressionSettings(MODEL, goal={"max_error": 4.0})
NOISY = CompressionSettings(MODEL, goal={"noise_share": 0.05}, noise=Denoiser(8))


def prepare(folder: Path) -> None:
    """Make what the jobs read, and stores that they change."""
    images, maps = smooth_images(60, (24, 20, 3)), drifting(60)
    rng = np.random.default_rng(0)
    pattern = rng.integers(0, 255, (1, 24, 20, 3), dtype=np.uint8)  # that comes and goes
    flicker = rng.integers(0, 2, (12, 1, 1, 1), dtype=np.uint8) * pattern
    for name, values, stated in (
        ("first", images[:40], (0, 255)),
        ("more", images[40:], (0, 255)),
        ("flicker", flicker, (0, 255)),
        ("days", maps[:41], (-6, 6)),
        ("later", maps[41:], (-6, 6)),
    ):
        np.save(folder / f"{name}.npy", values)
        ingest(
            folder / f"{name}.npy", folder / f"{name}.zarr", reading=ReadOptions(data_range=stated), run=Run(threads=1)
        )
    for name, goal in {"first": {"psnr": 30.0}, "days": {"psnr": 45.0}}.items():
        CellPCA(12, cell_shape=8, shared=True).fit(folder / f"{name}.zarr").save(folder / f"{name}-model.zarr")
        encode_store(
            open_stack(folder / f"{name}.zarr"), folder / f"{name}-model.zarr", folder / f"{name}-small", **goal
        )


def jobs(folder: Path) -> dict[str, tuple[str, Callable[[Path], object]]]:
    """Return each job, and the store that it changes."""
    first = folder / "first.zarr"
    return {
        "encode": ("", lambda out: encode_store(open_stack(first), folder / "first-model.zarr", out, max_error=4.0)),
        "compress": ("", lambda out: compress(folder / "first.npy", out, SETTINGS)),
        "compress noise": ("", lambda out: compress(folder / "first.npy", out, NOISY)),
        "append": ("first-small", lambda out: append_store(out, open_stack(folder / "more.zarr"), drift="accept")),
        "append waves": (
            "days-small",
            lambda out: append_store(out, open_stack(folder / "later.zarr"), drift="accept"),
        ),
        "refit": (
            "first-small",
            lambda out: append_store(
                out, open_stack(folder / "flicker.zarr"), drift="refit", original=open_stack(first)
            ),
        ),
    }


def kill_everywhere(folder: Path, before: str, job: Callable[[Path], object], every: int) -> tuple[int, int]:
    """Kill a job before its changes; return how often, and how many differences there were."""

    def run(here: Path, n: int) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        if n:
            kill_before_change(n, str(here))
        job(here / "out.zarr")

    def resume_from(name: str) -> Path:
        (here := folder / name).mkdir()
        if before:
            shutil.copytree(folder / before, here / "out.zarr")
        return here

    calm = resume_from("calm")
    old = tree(calm / "out.zarr")
    in_a_child(run, calm, 0)
    new, n, differences = tree(calm / "out.zarr"), 1, 0
    while True:
        here = resume_from("killed")
        ended = in_a_child(run, here, n)
        there = tree(here / "out.zarr")
        if not ended:
            in_a_child(run, here, 0)
        wrong = there not in (old, new) or tree(here / "out.zarr") != new or (here / "out.zarr.partial").exists()
        if wrong:
            print(f"killed before change {n}: DIFFERENT", flush=True)
        differences += wrong
        shutil.rmtree(here)
        if ended:
            shutil.rmtree(calm)
            return -(-(n - 1) // every), differences
        n += every


def main() -> int:
    """Kill, compare, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="kill before every N-th change")
    parser.add_argument("--jobs", nargs="+", metavar="NAME", help="these only (default: all)")
    options = parser.parse_args()
    os.fsync = lambda handle: None  # type: ignore[assignment] # no power is cut here
    kills = differences = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        in_a_child(prepare, folder)
        for title, (before, job) in jobs(folder).items():
            if options.jobs is None or title in options.jobs:
                found = kill_everywhere(folder, before, job, options.every)
                print(f"{title}: {found[0]} kills, {found[1]} differences", flush=True)
                kills, differences = kills + found[0], differences + found[1]
    print(f"{kills} kills, {differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
