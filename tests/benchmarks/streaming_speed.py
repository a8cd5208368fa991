"""What one pass of StreamingPCA costs and finds beside its peers: one store, one run, one thread each.

    python tests/benchmarks/streaming_speed.py                       (CIFAR-10 subset from ../shared/data)
    python tests/benchmarks/streaming_speed.py --source photos.zarr --components 50 --rounds 5

Peers: processor time a row, reading included; the captured variance is measured on all rows in float64 and divided by
the largest there is. scikit-learn's IncrementalPCA with batches of 200, at which it is fastest, Dask's svd_compressed
with two power iterations, and xeofs where it is installed. They take turns; the least time of each counts.

Memory: most that a process of its own ever held for a tenth of the stack and for all of it.

Arithmetic: processor time of a step of a settled stream beside that of its two products alone, batch with basis and
projection with batch.

Reading: seconds of a pass that reads ahead, beside those of reading alone and of arithmetic alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from dpca import StreamingPCA
from dpca.engine.fold_tasks import Work, fold_segment
from dpca.engine.memory import peak_resident_bytes
from dpca.engine.plan import Group
from dpca.engine.source import as_source, batches
from dpca.models.streaming_methods import make_rule
from dpca.partition.whole import Whole
from dpca.pipelines.studies.convergence.reference import exact_reference
from dpca.rules.incremental_svd import IncrementalSVD
from dpca.storage import open_stack

Array = np.ndarray[Any, Any]

#: How many times the processor time of StreamingPCA each peer is asked to take at least.
ASKED = {"IncrementalPCA": 10, "svd_compressed": 1, "xeofs": 4}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", help="stack store or Zarr array (default: the CIFAR-10 subset, twelve times over)")
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip", nargs="*", default=(), choices=("peers", "memory", "arithmetic", "reading"))
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    k = options.components
    if options.peak_of:
        StreamingPCA(k).fit(options.peak_of)
        print(peak_resident_bytes())
        return 0
    with tempfile.TemporaryDirectory(dir=".") as folder, threadpool_limits(1):
        path = options.source or str(_cifar(Path(folder)))
        stored = open_stack(path).samples
        parts: dict[str, Callable[[], None]] = {
            "peers": lambda: _compare(stored, k, options.rounds),
            "memory": lambda: _grow(path, stored, Path(folder), k),
            "arithmetic": lambda: _arithmetic(stored, k, options.rounds),
            "reading": lambda: _overlap(path, k, options.rounds),
        }
        for name, measure in parts.items():
            if name not in options.skip:
                measure()
    return 0


# -- peers


def _compare(stored: Any, k: int, rounds: int) -> None:
    fits = {
        "StreamingPCA": lambda: StreamingPCA(k).fit(stored).components_,
        "IncrementalPCA": lambda: _incremental(stored, k),
        "svd_compressed": lambda: _compressed(stored, k),
    }
    if importlib.util.find_spec("xeofs"):
        fits["xeofs"] = lambda: _xeofs(stored, k)
    seconds = dict.fromkeys(fits, np.inf)
    found: dict[str, Array] = {}
    with dask.config.set(scheduler="synchronous"):
        for _ in range(rounds):
            for name, fit in fits.items():
                began = time.process_time()
                found[name] = fit()
                seconds[name] = min(seconds[name], time.process_time() - began)
    shares = _captured(stored, found, k)
    for name in fits:
        cost, ratio = seconds[name] / stored.shape[0] * 1e3, seconds[name] / seconds["StreamingPCA"]
        asked = f"  (asked: {ASKED[name]} x, captured at most ours)" if name in ASKED else ""
        print(f"{name:16} {cost:8.3f} ms a row  {ratio:6.2f} x  captured / best {shares[name]:.7f}{asked}", flush=True)


def _cifar(folder: Path) -> Path:
    file = Path(__file__).parents[3] / "shared" / "data" / "cifar10-5085.npz"
    if not file.exists():
        sys.exit("the CIFAR-10 subset is not in ../shared/data: give a stack store with --source")
    with np.load(file) as bundle:
        images = bundle["images"]
    images = np.concatenate([images[np.random.default_rng(i).permutation(len(images))] for i in range(12)])
    zarr.create_array(str(folder / "cifar.zarr"), data=images, chunks=(512, *images.shape[1:]))
    return folder / "cifar.zarr"


def _incremental(stored: Any, k: int) -> Array:
    model = IncrementalPCA(k, batch_size=max(200, k))
    step = model.batch_size
    for start in range(0, stored.shape[0] - step + 1, step):
        rows = stored[start : start + step]
        model.partial_fit(rows.reshape(step, -1).astype(np.float32))
    components: Array = model.components_
    return components


def _rows(stored: Any) -> da.Array:
    x = da.from_zarr(stored, chunks=(2048, *stored.shape[1:])).astype(np.float32)
    return x.reshape(x.shape[0], -1)


def _compressed(stored: Any, k: int) -> Array:
    x = _rows(stored)
    _, _, v = da.linalg.svd_compressed(x - x.mean(axis=0), k, n_power_iter=2, seed=0, compute=True)
    rows: Array = v.compute()
    return rows


def _xeofs(stored: Any, k: int) -> Array:
    import xarray as xr
    from xeofs.single import EOF

    rows = _rows(stored)
    samples = xr.DataArray(rows, {"time": np.arange(len(rows)), "x": np.arange(rows.shape[1])}, ("time", "x"))
    model = EOF(n_modes=k, random_state=0)
    model.fit(samples, dim="time")
    found: Array = model.components().transpose("mode", "x").values
    return found


def _captured(stored: Any, found: dict[str, Array], k: int) -> dict[str, float]:
    """Captured variance of each, divided by that of the leading eigenvectors of the covariance."""
    reference = exact_reference(as_source(stored), k)
    captured, _ = reference.captured([reference.components, *found.values()])
    return {name: share / captured[0] for name, share in zip(found, captured[1:], strict=True)}


# -- memory


def _grow(path: str, stored: Any, folder: Path, k: int) -> None:
    tenth = folder / "tenth.zarr"
    n = stored.shape[0] // 10
    zarr.create_array(str(tenth), data=stored[:n], chunks=stored.chunks)
    command = [sys.executable, __file__, "--components", str(k), "--peak-of"]
    for name, rows in ((str(tenth), n), (path, stored.shape[0])):
        peak = int(subprocess.run([*command, name], check=True, capture_output=True, text=True).stdout)
        print(f"peak memory of a fit to {rows:9,} samples {peak / 1e6:8.1f} MB", flush=True)


# -- arithmetic


def _arithmetic(stored: Any, k: int, rounds: int) -> None:
    rule = IncrementalSVD(k)
    step = rule.batch_rows("float32")
    count = max(2, min(stored.shape[0], 2**28 // int(np.prod(stored.shape[1:]))) // step)
    x = np.asarray(stored[: count * step]).reshape(count * step, -1)
    state = rule.init(x.shape[1], x.dtype)
    for _ in range(3):  # a stream that has settled
        rule.update(state, x)
    basis, rows = state.arrays["basis"].copy(), x[:step].astype(np.float32)
    projected, image = rows @ basis.T, np.empty_like(basis)
    alone, ours = np.inf, np.inf
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(count):
            np.matmul(rows, basis.T, out=projected)
            np.matmul(projected.T, rows, out=image)
        alone = min(alone, (time.process_time() - began) / count)
        began = time.process_time()
        rule.update(state, x)
        ours = min(ours, (time.process_time() - began) / count)
    print(
        f"a step of {step} rows of {x.shape[1]:,}: {ours * 1e3:.2f} ms, {ours / alone:.2f} x its two products alone",
        flush=True,
    )


# -- reading


def _overlap(path: str, k: int, rounds: int) -> None:
    source = as_source(open_stack(path))
    whole = Whole(tuple(source.shape[1:]))
    group, span = Group((0,), whole.region(0)), (0, source.shape[0])
    rule = make_rule("incremental-svd", k, center=True, options={}, batch_size=None, seed=0)
    rows = max(1, rule.batch_rows(source.dtype) // source.chunks[0]) * source.chunks[0]
    block = np.empty((min(rows, span[1]), *source.shape[1:]), source.dtype)
    source.reader()((0, len(block)), group.region, block)
    flat = block.reshape(len(block), -1)

    def read() -> None:
        for _ in batches(source, span, group.region, rows):
            pass

    def compute() -> None:
        state = rule.init(flat.shape[1], flat.dtype)
        for start in range(0, span[1], rows):
            state = rule.update(state, flat[: span[1] - start])

    def both() -> None:
        fold_segment(Work(rule, whole, group, rows, 1, source.shape[0], source.name, source.dtype, ""), source, span)

    best = {"reading": np.inf, "arithmetic": np.inf, "both": np.inf}
    for _ in range(rounds):
        for name, job in zip(best, (read, compute, both), strict=True):
            began = time.perf_counter()
            job()
            best[name] = min(best[name], time.perf_counter() - began)
    longer = max(best["reading"], best["arithmetic"])
    told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in best.items())
    print(f"{told}: {best['both'] / longer:.2f} x the longer of the two alone", flush=True)


if __name__ == "__main__":
    sys.exit(main())
