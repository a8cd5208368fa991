"""Stacks that few have thought of, and goals that are met by each of them, or refused in a sentence."""

from __future__ import annotations

import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from skimage.metrics import structural_similarity

import dpca
from dpca import CellPCA, Denoiser
from dpca.codec.goal import Goal
from dpca.jobs import append_store, encode_store
from dpca.jobs.compressed.cell_choice import choose_cells
from dpca.jobs.denoising.noise_level import goal_with_noise
from dpca.representation.compressed.compressed import Compressed
from dpca.storage import ingest
from dpca.storage.disk import folder_bytes
from dpca.storage.errors import DataError, PlanError, StoreError
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions

TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "b1", ">u2", ">i4", ">f4", ">f8")
GOALS = ("ratio", "psnr", "mse", "ssim", "max_error", "max_relative_error", "noise_share")
_SHAPES = ((1, 1), (3, 2), (6, 6), (7, 7), (9, 20), (16, 12), (5, 8, 3), (8, 8, 2), (7, 8, 9), (30, 1), (28, 20), (13,))
_COUNTS = (1, 2, 3, 15, 17, 40, 120, 300, 700)
_SCALES = (1e-310, 1e-45, 1e-30, 1e-4, 1.0, 255.0, 1e9, 1e30, 1e37, 1e150, 1e300)


@dataclass(frozen=True)
class Trial:
    """One run: samples, how they are read, and what is asked for."""

    values: np.ndarray
    axes: tuple[str, ...] | None
    data_range: tuple[float, float] | None
    goal: dict[str, float]
    every_sample: bool
    chosen: bool
    appended: int
    sigma: float | None = None

    @property
    def words(self) -> str:
        """What is tried, in a line."""
        x = self.values
        more = [name for name in ("every_sample", "chosen", "appended") if getattr(self, name)]
        return f"{x.shape} {x.dtype.str} in {x.min()!s}..{x.max()!s} as {self.data_range}, {self.goal} {' '.join(more)}"


def odd_trial(rng: np.random.Generator, goal: str | None = None) -> Trial:
    """Return the settings of a random run."""
    shape, dtype = _SHAPES[rng.integers(len(_SHAPES))], np.dtype(TYPES[rng.integers(len(TYPES))])
    n = int(_COUNTS[rng.integers(len(_COUNTS))])
    values = _in_type(_patterns(rng, n, shape), dtype, rng)
    axes = ("z", "y", "x") if shape == (7, 8, 9) else None
    low, high = float(values.min()), float(values.max())
    stated = {0: None, 1: (low, high), 2: (low - 1, high + 1)}[int(rng.integers(3))]
    if stated is not None and not (stated[0] < stated[1] and np.isfinite(stated[1] - stated[0])):
        stated = None
    name = goal or GOALS[rng.integers(len(GOALS))]
    width = stated[1] - stated[0] if stated else max(high - low, abs(high), 1e-300)
    value = {
        "ratio": rng.choice([0.5, 1.5, 3, 8, 40]),
        "psnr": rng.choice([5, 12, 20, 30, 45, 60, 100]),
        "mse": 10.0 ** -rng.choice([1, 2, 3, 4, 7]),
        "ssim": rng.choice([0.1, 0.5, 0.8, 0.9, 0.98, 0.9999]),
        "max_error": rng.choice([0.5, 1.0, 2.7, width * 1e-2, width * 1e-4, width * 1e-7]),
        "max_relative_error": rng.choice([0.1, 0.01, 1e-3, 1e-6, 1e-9]),
        "noise_share": rng.choice([1e-4, 0.01, 0.3, 2.0]),
    }[name]
    each = bool(rng.random() < 0.25) and name in ("psnr", "mse", "ssim")
    appended = int(rng.integers(1, n)) if n > 1 and rng.random() < 0.2 else 0
    chosen = bool(rng.random() < 0.3)
    sigma = float(width * rng.choice([1e-5, 1e-3, 0.1, 1.0])) if name == "noise_share" else None
    return Trial(values, axes, stated, {name: float(value)}, each, chosen, appended, sigma)


def _patterns(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return values of about -1 to 1."""
    kind = rng.integers(8)
    if kind == 0:
        return np.full((n, *shape), rng.choice([0.0, -1.0, 0.3]))
    noise = rng.normal(0, 0.3, (n, *shape))
    if kind == 1:
        return noise
    few = np.tanh(rng.normal(size=(n, 3)) @ rng.normal(size=(3, int(np.prod(shape))))).reshape(n, *shape)
    if kind == 2:
        return few
    if kind == 3:  # sorted: what differs comes last
        few[-max(1, n // 9) :] = noise[-max(1, n // 9) :] * 3
        return np.clip(few * 0.2, -1, 1)
    if kind == 4:  # one sample, or one value, far away
        few *= 1e-3
        few[int(rng.integers(n))] = rng.choice([1.0, -1.0])
        return few
    if kind == 5:
        return rng.choice([-1.0, 1.0], (n, *shape))
    if kind == 6:  # slowly changing
        return 0.9 * np.sin(np.arange(n) / 9).reshape(-1, *(1,) * len(shape)) * few[:1] + 0.02 * noise
    return noise * 10.0 ** rng.uniform(-6, 0, (n, *(1,) * len(shape)))


def _in_type(values: np.ndarray, dtype: np.dtype[Any], rng: np.random.Generator) -> np.ndarray:
    if dtype.kind == "b":
        return values > 0
    if dtype.kind == "f":
        scales = [scale for scale in _SCALES if scale < float(np.finfo(dtype).max) / 8]
        with np.errstate(all="ignore"):
            found = values * scales[rng.integers(len(scales))] + rng.choice(
                [0.0, 0.0, 1.0, 1e6 if dtype.itemsize > 2 else 9]
            )
            return np.clip(found, -np.finfo(dtype).max, np.finfo(dtype).max).astype(dtype)
    info = np.iinfo(dtype)
    low, high = sorted(
        int(end) for end in rng.choice([info.min, info.max, 0, 100, min(2632, info.max), info.max // 2], 2)
    )
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    found = np.clip(np.rint(middle + np.clip(values, -1, 1) * half), info.min, float(info.max))
    top = found >= float(info.max)
    return np.where(top, info.max, np.where(top, 0, found).astype(dtype)).astype(dtype)


def run(trial: Trial, folder: Path) -> str:
    """Run a trial; return "met", "refused: ..." in a sentence of ours, or "missed: ..." or "foreign: ..."."""
    first = trial.values[: len(trial.values) - trial.appended]
    np.save(folder / "values.npy", first)
    run, noise = Run(threads=1), None if trial.sigma is None else Denoiser(sigma=trial.sigma)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", category=UserWarning)
            stack = ingest(
                folder / "values.npy",
                folder / "stack.zarr",
                axes=trial.axes,
                reading=ReadOptions(data_range=trial.data_range),
                run=run,
            )
            n_spatial = len(stack.axes) - 1 - ("channel" in stack.axes)
            cell = tuple(min(5, length) for length in stack.sample_shape[:n_spatial])
            overlap = 2 if min(cell) > 4 else 0
            model = CellPCA(
                1 if trial.goal.keys() & {"max_error"} else 3, cell_shape=cell, overlap=overlap, shared=True
            )
            model.set_params(n_components=min(model.n_components, int(np.prod(cell))), random_state=0)
            if trial.chosen:
                goal = Goal.of(every_sample=trial.every_sample, **trial.goal)
                goal = goal_with_noise(goal, stack, noise, run)[0]
                model.set_params(**choose_cells(stack, model, goal).parameters)
            elif trial.goal.keys() & {"psnr", "mse", "ssim"}:
                model.set_params(n_components=None)
            model.fit(stack).save(folder / "model.zarr")
            encode_store(
                stack,
                folder / "model.zarr",
                folder / "out.zarr",
                every_sample=trial.every_sample,
                noise=noise,
                **trial.goal,
            )
            told = ""
            if trial.appended:
                np.save(folder / "more.npy", trial.values[len(first) :])
                low, high = stack.data_range or (None, None)
                reading = ReadOptions(data_range=(low, high))
                more = ingest(folder / "more.npy", folder / "more.zarr", axes=trial.axes, reading=reading, run=run)
                done = append_store(folder / "out.zarr", more, drift="accept")
                told = done.drifted or done.missed
    except (DataError, PlanError, StoreError) as error:
        return f"refused: {error}"
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"foreign: {type(error).__name__}: {error} ({at.name}, line {at.lineno} of {at.filename})"
    if told:
        return f"refused: {told}"
    wrong = missed(trial, dpca.open_compressed(folder / "out.zarr"), folder_bytes(folder / "out.zarr"))
    return f"missed: {wrong}" if wrong else "met"


def missed(trial: Trial, store: Compressed, size: int) -> str:
    """Say by how much a store misses a goal, measured by others than dpca, or nothing."""
    x, y = trial.values, store[...]
    if y.dtype != (np.uint8 if x.dtype == bool else x.dtype.newbyteorder("=")):
        return f"type {y.dtype}"
    ((name, value),) = trial.goal.items()
    low, high = store.facts["data_range"]
    width = np.longdouble(high) - np.longdouble(low)
    wide = (x.astype(np.longdouble) - y.astype(np.longdouble)).reshape(len(x), -1)
    if name.startswith("max"):
        bound = np.longdouble(value) * (width if name != "max_error" else 1)
        worst = np.abs(wide).max()
        # The product of two numbers is rounded once where a store states it.
        return f"{worst} of {bound}" if worst > bound * (1 + np.longdouble(2.0**-52)) else ""
    if name == "noise_share":
        share = np.mean(np.square(wide / np.longdouble(trial.sigma)))
        return f"share {share} of {value}" if share > 1.01 * value else ""
    if name == "ratio":
        return f"{x.nbytes / size} of {value}" if x.nbytes / size < value else ""
    if name == "ssim":
        n_spatial = store.codec.components.grid.n_spatial
        errors = [1 - _similarity(*both, n_spatial) for both in zip(x / width, y / width, strict=True)]
        allowed = 1 - value
    else:
        errors = np.square(wide / width).mean(axis=1)
        allowed = 10 ** (np.longdouble(-value) / 10) if name == "psnr" else value
    error = np.max(errors) if trial.every_sample else np.mean(errors)
    return "" if error <= allowed else f"error {error} of {allowed}"


def _similarity(a: np.ndarray, b: np.ndarray, n_spatial: int) -> float:
    """Return the SSIM of two samples with a range of 1; far from zero without the cancellation of others' sums."""
    if np.abs(a).max() < 1e4:
        channels = -1 if n_spatial < a.ndim else None
        return float(structural_similarity(a.astype(float), b.astype(float), data_range=1.0, channel_axis=channels))
    p, q = (sliding_window_view(v, (7,) * n_spatial, tuple(range(n_spatial))) for v in (a, b))
    within = tuple(range(-n_spatial, 0))
    m, n = (v.mean(axis=within) for v in (p, q))
    p, q = (v - mean.reshape(*mean.shape, *(1,) * n_spatial) for v, mean in ((p, m), (q, n)))
    of_p, of_q, of_both = (v.sum(axis=within) / (7**n_spatial - 1) for v in (p * p, q * q, p * q))
    c, d = np.longdouble(0.01) ** 2, np.longdouble(0.03) ** 2
    found = (2 * m * n + c) * (2 * of_both + d) / ((m * m + n * n + c) * (of_p + of_q + d))
    return float(found.mean())
