"""What StreamingPCA costs and finds beside its peers, and its rule beside the products that it makes.

    python tests/benchmarks/speed/streaming_speed.py

Peers: processor time of one pass over one store, one thread each, reading included, and the variance of rows that no
fit has seen. scikit-learn's IncrementalPCA with batches of 200, at which it is fastest, Dask's svd_compressed with two
power iterations, and xeofs where it is installed.

Rule: a step of a settled stream beside its two products alone, batch with basis and projection with batch. The Gram
matrices of 200 rows each, from which it bounds what it leaves out, are told beside them.

partial_fit: frames given one by one, beside the rule that is given all at once.

Reading: a pass that reads ahead, beside reading alone and arithmetic alone; seconds on the wall.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from dpca import StreamingPCA
from dpca.engine.folds.fold_tasks import GroupTask, fold_segment
from dpca.engine.folds.plan import Group
from dpca.engine.sources.source import as_source, batches
from dpca.models.streaming.streaming_methods import RuleStream, make_rule
from dpca.partition.whole import Whole
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from tests.benchmarks.inputs import Array, Inputs
from tests.benchmarks.peers import HAS_XEOFS, fit_xeofs
from tests.benchmarks.sides import Line, alone, at_least, at_most, in_turn, ratio_of

_K = 50
_PEERS = ("IncrementalPCA", "svd_compressed", "xeofs")
#: How many times the processor time of StreamingPCA each peer is asked to take at least: many, fewer, few, wide rows.
_ASKED = (20, 5, 18), (None, 2.5, None), (None, 1.2, None), (30, 3, 18)


def peer_lines(inputs: Inputs) -> Iterator[Line]:
    """Compare with the peers, on many rows of few attributes, on few of them, and on few rows of many."""
    rng = np.random.default_rng(0)
    small, wide = rng.permutation(inputs.small), inputs.wide
    many, few = (100, 60) if inputs.quick else (10_000, 1_000)
    next(_compare(inputs, small[: few // 2], small[few:], 1, _ASKED[0]))  # loads code
    # Where the first batches, which no basis has seen, count little.
    often = rng.permutation(np.tile(small[:many], (4, 1)))
    sizes = (often, small[many:]), (small[:many], small[many:]), (small[:few], small[few:])
    for (seen, unseen), asked in zip(sizes, _ASKED[:3], strict=True):
        yield from _compare(inputs, seen, unseen, inputs.rounds, asked)
    # A virtual machine takes seconds for memory that it uses for the first time, which the first side would pay for.
    np.ones(wide.size)
    # IncrementalPCA takes a minute.
    yield from _compare(inputs, wide[: len(wide) * 2 // 3], wide[len(wide) * 2 // 3 :], 1, _ASKED[3])


def _compare(inputs: Inputs, seen: Array, unseen: Array, rounds: int, limits: Sequence[float | None]) -> Iterator[Line]:
    (n, d), k = seen.shape, min(_K, len(seen) // 4)
    where = f"photographs of {d:,} attributes, k = {k}"
    path = str(inputs.folder / f"rows-{n}-{d}.zarr")
    stored = zarr.create_array(path, data=seen, chunks=(min(512, n), d))
    fits: dict[str, Callable[[Any, int], Array]] = {
        "StreamingPCA": lambda x, k: StreamingPCA(k).fit(x).components_,
        "IncrementalPCA": _incremental,
        "svd_compressed": _compressed,
    }
    if HAS_XEOFS:
        fits["xeofs"] = _xeofs
    found: dict[str, Array] = {}

    def fit(name: str) -> None:
        found[name] = fits[name](stored, k)

    with dask.config.set(scheduler="synchronous"), threadpool_limits(1):
        seconds = in_turn({name: partial(fit, name) for name in fits}, rounds)
    shares = _captured(seen, unseen, found)
    for name, asked in zip(_PEERS, limits, strict=True):
        speed, quality = (f"{what} against {name}, n = {n}, d = {d}" for what in ("streaming", "captured"))
        missing = {"ratio": None, "what": f"{name} is not installed", "sides": {}}
        if name not in found:
            yield at_least(asked, name=speed, where=where, n=n, unit="CPU s", **missing)
            continue
        yield at_least(asked, name=speed, where=where, n=n, **ratio_of(seconds, [name], ["StreamingPCA"]))
        both = ["StreamingPCA"], [name]
        held_out = f"{len(unseen):,} other {where}"
        yield at_least(1.0, name=quality, where=held_out, n=n, **ratio_of([shares], *both, unit="share"))


def _incremental(stored: Any, k: int) -> Array:
    model, step = IncrementalPCA(k), max(200, k)
    # It refuses a last batch of fewer rows than components.
    for start in range(0, max(1, stored.shape[0] - k), step):
        model.partial_fit(stored[start : start + step].astype(np.float32))
    components: Array = model.components_
    return components


def _rows(stored: Any) -> da.Array:
    return da.from_zarr(stored, chunks=(2048, stored.shape[1])).astype(np.float32)


def _compressed(stored: Any, k: int) -> Array:
    x = _rows(stored)
    _, _, v = da.linalg.svd_compressed(x - x.mean(axis=0), k, n_power_iter=2, seed=0, compute=True)
    rows: Array = v.compute()
    return rows


def _xeofs(stored: Any, k: int) -> Array:
    import xarray as xr

    rows = _rows(stored)
    samples = xr.DataArray(rows, {"time": np.arange(len(rows)), "x": np.arange(rows.shape[1])}, ("time", "x"))
    found: Array = fit_xeofs(samples, k, random_state=0).components().transpose("mode", "x").values
    return found


def _captured(seen: Array, unseen: Array, found: dict[str, Array]) -> dict[str, float]:
    """Share of the variance of rows about the mean of those that were fitted, captured by orthonormal rows."""
    mean = seen.mean(axis=0, dtype=np.float64).astype(np.float32)
    captured, total = dict.fromkeys(found, 0.0), 0.0
    bases = {name: np.linalg.qr(rows.T.astype(np.float64))[0].astype(np.float32) for name, rows in found.items()}
    for start in range(0, len(unseen), 256):
        block = unseen[start : start + 256] - mean
        total += float(np.einsum("ij,ij->", block, block, dtype=np.float64))
        for name, basis in bases.items():
            captured[name] += float(np.square(block @ basis, dtype=np.float64).sum())
    return {name: value / total for name, value in captured.items()}


# -- the rule


def rule_lines(inputs: Inputs) -> Iterator[Line]:
    """Compare the rule with its products at several numbers of attributes."""
    dims = (144, 600) if inputs.quick else (784, 3072, 12_288, 49_152, 196_608, 1_000_000)
    for d in dims:
        rule = IncrementalSVD(8 if inputs.quick else _K)
        # As many as StreamingPCA gives it.
        n = min(rule.batch_rows(np.float32), max(100, 2**26 // d))
        with threadpool_limits(1):
            x = _waves(4 * n, d)
            state = rule.init(d, x.dtype)
            for start in range(0, 3 * n, n):  # a stream that has settled
                rule.update(state, x[start : start + n])
        last = x[3 * n :]
        basis, rows = state.arrays["basis"].copy(), last.astype(np.float32)
        projected, image = rows @ basis.T, np.empty_like(basis)

        def products(rows: Array = rows, basis: Array = basis, out: tuple[Array, Array] = (projected, image)) -> None:
            np.matmul(rows, basis.T, out=out[0])
            np.matmul(out[0].T, rows, out=out[1])

        def grams(rows: Array = rows) -> None:
            for start in range(0, len(rows), 200):
                rows[start : start + 200] @ rows[start : start + 200].T

        sides = {"step": partial(rule.update, state, last), "products": products, "Gram matrices": grams}
        with threadpool_limits(1):
            rounds = in_turn(sides, inputs.rounds)
        where = f"made waves of {d:,} attributes, q = {len(basis)}"
        yield at_most(1.6, name=f"rule, d = {d}", where=where, n=n, **ratio_of(rounds, ["step"], ["products"]))


def _waves(n: int, d: int) -> Array:
    """8-bit rows with a spectrum that decays, as those of photographs do."""
    rng, rank = np.random.default_rng(0), 60
    directions = rng.standard_normal((rank, d), np.float32) * (40 / np.arange(1, rank + 1, dtype=np.float32))[:, None]
    rows = np.empty((n, d), np.uint8)
    for start in range(0, n, 64):
        part = rng.standard_normal((min(64, n - start), rank), np.float32) @ directions
        part += 4 * rng.standard_normal(part.shape, np.float32)
        rows[start : start + 64] = np.clip(part + 128, 0, 255)
    return rows


def partial_fit_lines(inputs: Inputs) -> Iterator[Line]:
    """Compare frames that are given one by one with the rule that is given all of them."""
    side, n, k, batch = (8, 60, 8, 20) if inputs.quick else (64, 512, _K, None)
    frames = _waves(n, side**3)

    def one_by_one() -> None:
        model = StreamingPCA(k, batch_size=batch)
        for i in range(n):
            model.partial_fit(frames[i : i + 1])

    def at_once() -> None:
        rule = make_rule(
            "incremental-svd",
            k,
            center=True,
            options={},
            batch_size=batch,
            seed=0,
            stream=RuleStream(n_features=side**3),
        )
        rule.update(rule.init(side**3, frames.dtype), frames)

    with threadpool_limits(1):
        rounds = in_turn({"partial_fit": one_by_one, "rule": at_once}, inputs.rounds)
    found = ratio_of(rounds, ["partial_fit"], ["rule"])
    yield at_most(2.0, name="partial_fit", where=f"frames of {side} x {side} x {side}, k = {k}", n=n, **found)


# -- reading


def reading_lines(inputs: Inputs) -> Iterator[Line]:
    """Compare a pass with the longer of its parts."""
    k = 8 if inputs.quick else _K
    source = as_source(inputs.stack)
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
        fold_segment(
            GroupTask(rule, whole, group, rows, 1, source.shape[0], source.name, source.dtype, "", "fit"), source, span
        )

    with threadpool_limits(1):
        rounds = in_turn({"pass": both, "reading": read, "arithmetic": compute}, inputs.rounds, time.perf_counter)
    longer = max("reading", "arithmetic", key=lambda name: rounds[0][name])
    where = f"stack of {whole.sample_shape}, k = {k}"
    found = ratio_of(rounds, ["pass"], [longer], unit="wall s")
    yield at_most(None, name="reading ahead", where=where, n=span[1], **found)


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure all."""
    stages = (peer_lines, rule_lines, partial_fit_lines, reading_lines)
    return chain.from_iterable(stage(inputs) for stage in stages)


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
