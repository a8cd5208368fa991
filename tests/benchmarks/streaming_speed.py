"""What one pass of StreamingPCA costs and finds beside its peers: one store, one run, one thread each.

    python tests/benchmarks/streaming_speed.py                       (CIFAR-10 subset from ../shared/data)
    python tests/benchmarks/streaming_speed.py --source photos.zarr --components 50 --rounds 5

Processor time a row, reading included; the captured variance is measured on all rows in float64 and divided by the
largest there is. Peers: scikit-learn's IncrementalPCA with batches of 100, and Dask's svd_compressed with two power
iterations. They take turns; the least time of each counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from dpca import StreamingPCA
from storage import open_stack

Array = np.ndarray[Any, Any]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", help="stack store or Zarr array (default: the CIFAR-10 subset, twelve times over)")
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    k = options.components
    with tempfile.TemporaryDirectory(dir=".") as folder:
        stored = open_stack(options.source or _cifar(Path(folder))).samples
        fits = {
            "StreamingPCA": lambda: StreamingPCA(k).fit(stored).components_,
            "IncrementalPCA": lambda: _incremental(stored, k),
            "svd_compressed": lambda: _compressed(stored, k),
        }
        seconds = dict.fromkeys(fits, np.inf)
        found: dict[str, Array] = {}
        with threadpool_limits(1), dask.config.set(scheduler="synchronous"):
            for _ in range(options.rounds):
                for name, fit in fits.items():
                    began = time.process_time()
                    found[name] = fit()
                    seconds[name] = min(seconds[name], time.process_time() - began)
        shares = _captured(stored, found, k)
    for name in fits:
        cost, ratio = seconds[name] / stored.shape[0] * 1e3, seconds[name] / seconds["StreamingPCA"]
        print(f"{name:16} {cost:8.3f} ms a row  {ratio:6.2f} x  captured / best {shares[name]:.7f}")
    return 0


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
    model = IncrementalPCA(k, batch_size=max(100, k))
    step = model.batch_size
    for start in range(0, stored.shape[0] - step + 1, step):
        rows = stored[start : start + step]
        model.partial_fit(rows.reshape(step, -1).astype(np.float32))
    components: Array = model.components_
    return components


def _compressed(stored: Any, k: int) -> Array:
    x = da.from_zarr(stored, chunks=(2048, *stored.shape[1:])).astype(np.float32)
    x = x.reshape(x.shape[0], -1)
    _, _, v = da.linalg.svd_compressed(x - x.mean(axis=0), k, n_power_iter=2, seed=0, compute=True)
    rows: Array = v.compute()
    return rows


def _captured(stored: Any, found: dict[str, Array], k: int) -> dict[str, float]:
    """Captured variance of each, divided by that of the leading eigenvectors of the covariance."""
    d = int(np.prod(stored.shape[1:]))
    total, cross, n = np.zeros(d), np.zeros((d, d)), stored.shape[0]
    for start in range(0, n, 4096):
        rows = stored[start : start + 4096].reshape(-1, d).astype(np.float64) - 128
        total += rows.sum(axis=0)
        cross += rows.T @ rows
    covariance = (cross - np.outer(total, total / n)) / (n - 1)
    best = np.linalg.eigvalsh(covariance)[-k:].sum()
    bases = {name: np.linalg.qr(rows.astype(np.float64).T)[0] for name, rows in found.items()}
    return {name: float(np.einsum("ij,ij->", basis, covariance @ basis) / best) for name, basis in bases.items()}


if __name__ == "__main__":
    sys.exit(main())
