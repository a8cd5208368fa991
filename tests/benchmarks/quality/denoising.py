"""The error of denoised phantoms of known truth, and the processor time, beside MP-PCA of DIPY and of patch-denoise.

    python tests/benchmarks/quality/denoising.py

Phantoms of diffusion MRI have Gaussian noise. The movie of a two-photon microscope has Poisson noise: its error is
divided by that of the noisy movie. Cells with a given noise are compared with cells that estimate it, and Rician noise
of magnitudes with the truth. The noise of two samples of diffusion MRI that DIPY has is compared with what DIPY
estimates in its largest windows.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter1d

from dpca import CellPCA, Denoiser
from dpca.storage.remote.tasks import one_blas_thread
from tests.benchmarks.inputs import Array, Inputs
from tests.benchmarks.sides import Line, alone, at_most, ratio_of
from tests.helpers.phantoms import diffusion, movie, rmse

# Shapes, numbers of volumes, and noise.
_PHANTOMS = (((32, 32, 12), 67, 0.02), ((24, 24, 24), 33, 0.05), ((40, 40, 20), 65, 0.03))
# Widths of Gaussian smoothing, in frames.
_WIDTHS = (0.5, 0.7, 1.0, 1.3, 1.6, 2.0, 3.0)
_QUICK = (((8, 8, 8), 20, 0.05),)


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    peers = {"DIPY": ("dipy", _dipy, 0.97, 1 / 6), "patch-denoise": ("patch_denoise", _patch_denoise, 1.0, 0.5)}
    for shape, n, noise in _QUICK if inputs.quick else _PHANTOMS:
        truth = diffusion(shape, n)
        x = (truth + noise * np.random.default_rng(1).normal(size=truth.shape)).astype(np.float32)
        where = f"phantom of {' x '.join(map(str, shape))}, noise {noise:g}"
        named = f"denoising, {'x'.join(map(str, shape))}"
        Denoiser().fit_transform(x[:, :8, :8, :8])  # libraries are loaded
        ways = {peer: denoise for peer, (module, denoise, _, _) in peers.items() if find_spec(module) is not None}
        ways = {"Denoiser": lambda x: Denoiser().fit_transform(x), **ways}
        found = [{name: _measured(way, x, truth) for name, way in ways.items()} for _ in range(inputs.rounds)]
        for peer, (_, _, error, cost) in peers.items():
            for what, asked, unit in (("error", error, "share"), ("time", cost, "CPU s")):
                name = f"{named}, {what} beside {peer}"
                if peer not in ways:
                    missing: dict[str, Any] = {"ratio": None, "what": f"{peer} is not installed", "sides": {}}
                    yield at_most(asked, name=name, where=where, n=n, unit=unit, **missing)
                    continue
                sides = [{side: one[side][what] for side in ("Denoiser", peer)} for one in found]
                yield at_most(asked, name=name, where=where, n=n, **ratio_of(sides, ["Denoiser"], [peer], unit))
    n, size, cells = (200, 32, 6) if inputs.quick else (2000, 128, 80)
    truth, footprints, _ = movie(n, size, cells)
    x = np.random.default_rng(1).poisson(truth).astype(np.uint16)
    sides = [{"Denoiser": rmse(Denoiser(noise="poisson").fit_transform(x), truth), "noisy": rmse(x, truth)}]
    where = f"movie of {cells} cells, {size} x {size} pixels"
    name = "denoising, movie, error beside the noisy one"
    yield at_most(0.8 / 6.3, name=name, where=where, n=n, **ratio_of(sides, ["Denoiser"], ["noisy"], "share"))
    yield from _filters(x, where, inputs.rounds)
    yield from _traces(x, truth, footprints, where)
    yield from _ranks(x, truth, where)
    yield from _camera(truth, where)
    yield from _magnitudes(inputs)
    yield from _measurements()


def _filters(x: Array, where: str, rounds: int) -> Iterator[Line]:
    """Compare the compiled filters of all cells with products of BLAS, for which each box is copied and added."""
    cells = Denoiser(noise="poisson", offset=0.0).fit(x).filters_
    few, whole = x[:64].astype(np.float32), tuple((0, length) for length in x.shape[1:])
    compiled = cells.within(whole, whole)

    def by_blas() -> Array:
        out = np.repeat(cells.mean[None], len(few), axis=0)
        for part, rows in cells.filters.items():
            place, rank = (slice(None), *(slice(a, b) for a, b in cells.grids.boxes[part])), len(rows) // 2
            values = few[place].reshape(len(few), -1)
            target = out[place]
            target += (values @ rows[:rank].T @ rows[rank:]).reshape(target.shape)
        return out

    with one_blas_thread():
        np.testing.assert_allclose(compiled.apply(few), by_blas(), rtol=1e-4)
        sides = [{"compiled": _seconds(lambda: compiled.apply(few)), "BLAS": _seconds(by_blas)} for _ in range(rounds)]
    name = "denoising, movie, filters of 64 frames"
    yield at_most(None, name=name, where=where, n=len(few), **ratio_of(sides, ["compiled"], ["BLAS"]))


def _seconds(work: Callable[[], object], calls: int = 5) -> float:
    began = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - began) / calls


def _traces(x: Array, truth: Array, footprints: Array, where: str) -> Iterator[Line]:
    """Compare the filter in time with none, and the traces of cells with smoothed ones of the noisy movie."""
    clean = {
        name: Denoiser(noise="poisson", time_filter=name == "filter").fit_transform(x) for name in ("filter", "none")
    }
    errors = {name: rmse(values, truth) for name, values in clean.items()}
    name = "denoising, movie, error with the filter in time"
    yield at_most(0.75, name=name, where=where, n=len(x), **ratio_of([errors], ["filter"], ["none"], "share"))
    of = {"truth": truth, "noisy": x, "filter": clean["filter"]}
    traces = {name: np.stack([y[:, f > 0.5].mean(axis=1) for f in footprints]) for name, y in of.items()}

    def similar(found: Array) -> Array:
        pairs = zip(found, traces["truth"], strict=True)
        return np.array([np.corrcoef(one, other)[0, 1] for one, other in pairs])

    smoothed = [similar(gaussian_filter1d(traces["noisy"], width, axis=1)) for width in _WIDTHS]
    worse = similar(traces["filter"]) < np.max(smoothed, axis=0)
    name = "denoising, movie, traces that are worse than those of the noisy movie with the best smoothing of each"
    sides = [{"worse": float(worse.sum()), "all": float(len(worse))}]
    yield at_most(0.0, name=name, where=where, n=len(x), **ratio_of(sides, ["worse"], ["all"], "traces"))


def _ranks(x: Array, truth: Array, where: str) -> Iterator[Line]:
    """Compare cells with components above noise that is known, and that is estimated and equal everywhere."""
    errors = {}
    for name, sigma in {"estimated": None, "given": Denoiser(noise="poisson").fit(x).sigma_}.items():
        cells = CellPCA("marchenko-pastur", cell_shape=16, sigma=sigma).fit(x)
        errors[name] = rmse(cells.inverse_transform(cells.transform(x)), truth)
    name = "denoising, movie, error of cells with a given noise"
    yield at_most(0.75, name=name, where=where, n=len(x), **ratio_of([errors], ["given"], ["estimated"], "share"))


def _camera(truth: Array, where: str) -> Iterator[Line]:
    """Compare an estimated gain and offset with the true ones, and the error with that of a known camera."""
    gain, offset, noise = 3.0, 100.0, 4.0
    rng = np.random.default_rng(1)
    x = np.rint(gain * rng.poisson(truth) + rng.normal(offset, noise, truth.shape)).astype(np.uint16)
    models = {
        "estimated": Denoiser(noise="poisson"),
        "known": Denoiser(noise="poisson", gain=gain, offset=offset, read_noise=noise),
    }
    errors = {name: rmse((model.fit_transform(x) - offset) / gain, truth) for name, model in models.items()}
    name = "denoising, movie of a camera, error with estimated gain and offset"
    yield at_most(1.01, name=name, where=where, n=len(x), **ratio_of([errors], ["estimated"], ["known"], "share"))
    found = models["estimated"]
    for what, value, truly, most in (
        ("gain", found.gain_, gain, 0.03),
        ("value without light", found.offset_, offset - noise**2 / gain, 0.02),
    ):
        name, sides = f"denoising, movie of a camera, {what}", [{"difference": abs(value - truly), "true": truly}]
        yield at_most(most, name=name, where=where, n=len(x), **ratio_of(sides, ["difference"], ["true"], "share"))


def _magnitudes(inputs: Inputs) -> Iterator[Line]:
    """Compare the level of Rician noise with the truth, and the bias with that of Gaussian noise."""
    shape, n, _ = (_QUICK if inputs.quick else _PHANTOMS)[0]
    truth, noise = diffusion(shape, n), 0.05
    real, imaginary = noise * np.random.default_rng(1).normal(size=(2, *truth.shape))
    x, inside = np.hypot(truth + real, imaginary).astype(np.float32), truth[0] > 0
    where = f"magnitudes of the phantom of {' x '.join(map(str, shape))}, noise {noise:g}"
    bias = {}
    for kind in ("gaussian", "rician"):
        model = Denoiser(noise=kind)
        bias[kind] = abs(float((model.fit_transform(x) - truth)[:, inside].mean()))
    level = [{"rician": float(np.median(model.sigma_)), "truth": noise}]
    name = "denoising, magnitudes, level of the noise"
    yield at_most(1.02, name=name, where=where, n=n, **ratio_of(level, ["rician"], ["truth"], "share"))
    name = "denoising, magnitudes, bias beside Gaussian noise"
    yield at_most(0.1, name=name, where=where, n=n, **ratio_of([bias], ["rician"], ["gaussian"], "share"))


def _measurements() -> Iterator[Line]:
    """Compare the noise of measured volumes with that of DIPY, whose windows need many more voxels than volumes."""
    for name, n in (("small_64D", 65), ("small_101D", 102)):
        common: dict[str, Any] = {"name": f"denoising, {name} of DIPY, level of the noise", "n": n}
        if find_spec("dipy") is None:
            missing: dict[str, Any] = {"ratio": None, "what": "DIPY is not installed", "sides": {}, "unit": "share"}
            yield at_most(0.05, where="voxels of 2 to 2.5 mm", **missing, **common)
            continue
        from dipy.data import get_fnames
        from dipy.denoise.localpca import mppca
        from dipy.io.image import load_nifti

        volumes = np.asarray(load_nifti(get_fnames(name=name)[0])[0], np.float64)
        _, levels = mppca(volumes, patch_radius=np.array([2, 4, 4]), return_sigma=True)
        found = Denoiser().fit(np.moveaxis(volumes, -1, 0)).sigma_
        sides = {"Denoiser": float(np.mean(found)), "DIPY": float(np.mean(levels))}
        sides["difference"] = abs(sides["Denoiser"] - sides["DIPY"])
        where = f"volumes of {' x '.join(map(str, volumes.shape[:3]))}, windows of 5 x 9 x 9"
        yield at_most(0.05, where=where, **ratio_of([sides], ["difference"], ["DIPY"], "share"), **common)


def _measured(denoise: Callable[[Array], Array], x: Array, truth: Array) -> dict[str, float]:
    with one_blas_thread():  # further ones would spin
        began = time.process_time()
        clean = denoise(x)
        spent = time.process_time() - began
    return {"time": spent, "error": rmse(clean, truth)}


def _dipy(x: Array) -> Array:
    from dipy.denoise.localpca import mppca

    return np.moveaxis(np.asarray(mppca(np.moveaxis(x, 0, -1), patch_radius=2)), -1, 0)


def _patch_denoise(x: Array) -> Array:
    from patch_denoise.denoise import mp_pca

    volumes = np.ascontiguousarray(np.moveaxis(x, 0, -1))
    mask = np.ones(volumes.shape[:-1], bool)
    with redirect_stderr(io.StringIO()):  # its bar
        clean = mp_pca(volumes, (5, 5, 5), (4, 4, 4), mask=mask)[0]
    return np.moveaxis(np.asarray(clean), -1, 0)


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
