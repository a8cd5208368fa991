"""What EOF analysis of a field with land costs beside xeofs, and beside PCA of the places with data alone.

    python tests/benchmarks/speed/field_speed.py

The field is made: waves of random amplitudes and noise in single precision, of 240 x 480 places, NaN over a quarter of
them. xeofs takes it from memory, where it is installed, by its default, a randomized decomposition; EOF in one pass and
in two. Land is told by a store of it beside one of the places with data, in one pass and in two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dpca import EOF, StreamingPCA
from dpca.models.eof.eof_fit import batch_rows
from tests.benchmarks.inputs import Array, Inputs
from tests.benchmarks.peers import HAS_XEOFS, fit_xeofs
from tests.benchmarks.sides import Line, alone, at_least, at_most, in_turn, ratio_of

_K = 20
_MODES, _AT_ONCE = 60, 40


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    shape, n = ((12, 24), 300) if inputs.quick else ((240, 480), 1600)
    k = 4 if inputs.quick else _K
    places, where = land(shape), f"made field of {shape[0]} x {shape[1]}, a quarter land, {k} modes"
    n_places = places.size - int(places.sum())
    stored, sea = inputs.folder / "field.zarr", inputs.folder / "sea.zarr"
    write(stored, sea, shape, n, places)
    EOF(2, oversampling=2).fit(zarr.open_array(stored)[:40])  # loads code
    for passes in (1, 2):
        sides: dict[str, Callable[[], object]] = {
            "with land": lambda passes=passes: EOF(k, n_passes=passes, oversampling=60).fit(stored),
            "without": lambda passes=passes: StreamingPCA(
                k, n_passes=passes, oversampling=60, batch_size=batch_rows(n_places)
            ).fit(sea),
        }
        found = ratio_of(in_turn(sides, inputs.rounds), ["with land"], ["without"])
        yield at_most(1.3, name=f"land, passes: {passes}", where=where, n=n, **found)
    yield from _beside_xeofs(inputs, np.asarray(zarr.open_array(stored)[:]), k, where)


def _beside_xeofs(inputs: Inputs, field: Array, k: int, where: str) -> Iterator[Line]:
    name, n = "xeofs beside EOF", len(field)
    if not HAS_XEOFS:
        yield at_least(
            4, name=name, ratio=None, what="xeofs is not installed", sides={}, unit="CPU s", where=where, n=n
        )
        return
    import xarray

    coords = {"time": np.arange(n), "lat": np.linspace(-89, 89, field.shape[1]), "lon": np.arange(field.shape[2])}
    x = xarray.DataArray(field, coords, ("time", "lat", "lon"))
    captured: dict[str, float] = {}

    def ours() -> None:
        model: Any = EOF(k, weights="coslat", n_passes=1).fit(x)
        captured["EOF"] = float(((model.pcs().values.astype(float)) ** 2).sum())

    def theirs() -> None:
        model = fit_xeofs(x, k, use_coslat=True)
        captured["xeofs"] = float((model.scores(normalized=False).values.astype(float) ** 2).sum())

    found = ratio_of(in_turn({"EOF": ours, "xeofs": theirs}, inputs.rounds), ["xeofs"], ["EOF"])
    found["what"] += f"; captured {captured['EOF'] / captured['xeofs']:.6f} of its variance"
    yield at_least(4, name=name, where=where, n=n, **found)


def land(shape: tuple[int, int]) -> Array:
    """Return which places are land, about a quarter."""
    y, x = (np.linspace(0, turns * 2 * np.pi, length) for turns, length in zip((1, 1.4), shape, strict=True))
    return np.cos(y)[:, None] * np.sin(x) + 0.2 * np.cos(4.5 * x) > 0.35


def write(stored: Path, sea: Path, shape: tuple[int, int], n: int, places: Array) -> None:
    """Write a field, and its places with data beside it, in chunks of whole steps."""
    rng = np.random.default_rng(0)
    y, x = (np.linspace(0, 2 * np.pi, length, dtype=np.float32) for length in shape)
    waves = rng.uniform(0.3, 6, (_MODES, 4))
    maps = np.stack([np.outer(np.cos(a * y + b), np.cos(c * x + d)).ravel() for a, b, c, d in waves])
    amplitudes = rng.standard_normal((n, _MODES)) * 0.88 ** np.arange(_MODES)
    with_data = ~places.ravel()
    field = zarr.create_array(stored, shape=(n, *shape), chunks=(_AT_ONCE, *shape), dtype="f4")
    valid = (n, int(with_data.sum()))
    places_only = zarr.create_array(sea, shape=valid, chunks=(_AT_ONCE, valid[1]), dtype="f4")
    for start in range(0, n, _AT_ONCE):
        some = amplitudes[start : start + _AT_ONCE].astype(np.float32)
        rows = some @ maps + 0.3 * rng.standard_normal((len(some), maps.shape[1]), dtype=np.float32) + 280
        places_only[start : start + _AT_ONCE] = rows[:, with_data]
        rows[:, ~with_data] = np.nan
        field[start : start + _AT_ONCE] = rows.reshape(-1, *shape)


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
