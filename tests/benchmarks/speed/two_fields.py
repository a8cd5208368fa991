"""What MCA and CCA of two fields cost beside xeofs.

    python tests/benchmarks/speed/two_fields.py

The fields are made: waves in common and noise, in memory. Some have fewer samples than grid points, some more. First,
both libraries do MCA as xeofs does by default: of as many principal components as explain .999 of the variance, which
xeofs finds by a randomized decomposition. Then they do MCA, CCA and Hilbert MCA of some principal components exactly,
on coarser grids, because xeofs then computes all singular vectors. Last, MCA of some principal components, exact here
and randomized there; nothing is asked of its ratio. Each side computes patterns and scores of both fields. xeofs is
measured where it is installed, with statsmodels.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dpca import CCA, MCA
from tests.benchmarks.inputs import Array, Inputs
from tests.benchmarks.peers import HAS_XEOFS
from tests.benchmarks.sides import Line, alone, at_least, in_turn, ratio_of

_ASKED = 5
_K, _PCA = 6, 30
# Exact decompositions of xeofs are of every third grid point along each axis.
_EVERY = 3


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    sizes = {"few samples": (600, (90, 120), (60, 90)), "many samples": (6000, (24, 36), (24, 30))}
    if inputs.quick:
        sizes = {"few samples": (40, (9, 18), (12, 12)), "many samples": (300, (12, 18), (10, 12))}
    k, q = (2, 5) if inputs.quick else (_K, _PCA)
    for size, (n, *shapes) in sizes.items():
        fields = made(n, shapes)
        few = tuple(field[:, ::_EVERY, ::_EVERY] for field in fields)
        cases: dict[str, tuple[Callable[[], Any], tuple[str, float, str], Any]] = {
            "MCA of .999 of the variance": (lambda: MCA(k, n_pca_modes=0.999), ("MCA", 0.999, "auto"), fields),
            "MCA, exact": (lambda: MCA(k, n_pca_modes=q), ("MCA", q, "full"), few),
            "CCA, exact": (lambda: CCA(k, n_pca_modes=q), ("CCA", q, "full"), few),
            "Hilbert MCA, exact": (lambda: MCA(k, n_pca_modes=q, hilbert=True), ("HilbertMCA", q, "full"), few),
            "MCA beside randomized": (lambda: MCA(k, n_pca_modes=q), ("MCA", q, "auto"), fields),
        }
        for name, (make, theirs, given) in cases.items():
            asked = None if "randomized" in name else _ASKED
            yield _beside_xeofs(inputs, f"{name}, {size}", given, make, partial(_of_xeofs, k, *theirs), asked)


def _of_xeofs(k: int, kind: str, kept: float, solver: str) -> Any:
    from xeofs import cross

    model = getattr(cross, kind)(k, n_pca_modes=kept, solver=solver)
    for reduction in (model.pca1, model.pca2):
        reduction.solver_kwargs = {"solver": solver}
    return model


def _beside_xeofs(
    inputs: Inputs,
    name: str,
    fields: tuple[Any, Any],
    make: Callable[[], Any],
    theirs: Callable[[], Any],
    asked: float | None,
) -> Line:
    n, where = len(fields[0]), "made fields of {} x {} and {} x {}".format(*fields[0].shape[1:], *fields[1].shape[1:])
    if not HAS_XEOFS or importlib.util.find_spec("statsmodels") is None:
        what = "xeofs, with statsmodels, is not installed"
        return at_least(asked, name=name, ratio=None, what=what, sides={}, unit="CPU s", where=where, n=n)
    captured: dict[str, Array] = {}

    def ours() -> None:
        model = make().fit(*fields)
        model.patterns()
        model.scores()
        captured["dpca"] = np.asarray(model.singular_values_)

    def of_xeofs() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = theirs().fit(*fields, dim="time")
        model.components()
        model.scores()
        captured["xeofs"] = np.sqrt(np.asarray(model.data["squared_covariance"]))

    found = ratio_of(in_turn({"dpca": ours, "xeofs": of_xeofs}, inputs.rounds), ["xeofs"], ["dpca"])
    change = np.abs(captured["xeofs"] / captured["dpca"] - 1).max()
    found["what"] += f"; singular values differ by up to {change:.1e}"
    return at_least(asked, name=name, where=where, n=n, **found)


def made(n: int, shapes: list[tuple[int, int]]) -> tuple[Any, Any]:
    """Return two fields of waves with common amplitudes, and noise."""
    import xarray

    rng, fields = np.random.default_rng(0), []
    amplitudes = rng.standard_normal((n, 40)) * 0.85 ** np.arange(40)
    for shape in shapes:
        y, x = (np.linspace(0, 2 * np.pi, length) for length in shape)
        waves = rng.uniform(0.3, 6, (40, 4))
        maps = np.stack([np.outer(np.cos(a * y + b), np.cos(c * x + d)).ravel() for a, b, c, d in waves])
        own = amplitudes + 0.7 * rng.standard_normal(amplitudes.shape) * 0.85 ** np.arange(40)
        rows = own @ maps + 0.2 * rng.standard_normal((n, maps.shape[1]))
        coords = {"time": np.arange(n), "lat": np.arange(shape[0]), "lon": np.arange(shape[1])}
        fields.append(xarray.DataArray(rows.reshape(n, *shape), coords, ("time", "lat", "lon")))
    return fields[0], fields[1]


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
