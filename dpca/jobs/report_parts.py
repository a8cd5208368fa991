"""What the reports of all jobs have in common: where they are, the quality record, samples beside reconstructions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpca.kernels.pixels import to_pixels
from dpca.kernels.quality import psnr_from_mse
from dpca.report import plots
from dpca.report.record import write_report
from dpca.representation.base import Representation
from storage.disk import read_file
from storage.errors import StoreError, one_line
from storage.manifest import CHECKSUMS, FOLDER_MANIFEST, read_manifest
from storage.outputs import resolved_output
from storage.reading import array_in, open_array, open_group
from storage.stack import Stack

Array = NDArray[Any]

_SHOWN, _WORST = 6, 6


class Quality(NamedTuple):
    """The quality record of a scores store: one number a sample, None where the measure is not defined."""

    mse: Array
    ssim: Array | None

    def numbers(self, stack: Stack) -> dict[str, Any]:
        """Return what a report says of it."""
        ssim = self.ssim
        worst = None if ssim is None else int(ssim.argmin())
        return {
            "mse": float(self.mse.mean()),
            "psnr": float(psnr_from_mse(self.mse.mean())),
            "ssim_mean": None if ssim is None else float(ssim.mean()),
            "ssim_min": None if ssim is None else float(ssim.min()),
            "ssim_min_name": None if worst is None else str(stack.names[worst]),
        }


def report_folder(output: str | os.PathLike[str]) -> Path:
    """Return where the report of an output goes: ``out.report`` for ``out.zarr``.

    Raises
    ------
    StoreError
        If no output can be there.
    """
    resolved_output(output)
    path = Path(output)
    return path.with_name(f"{path.stem if path.suffix == '.zarr' else path.name}.report")


def read_report(folder: Path) -> dict[str, Any] | None:
    """Return the numbers of an earlier report, None if there is none, or a file of it is gone.

    Raises
    ------
    StoreError
        If they are not those that were written.
    """
    names = {name: os.path.lexists(folder / name) for name in ("report.json", "index.html", FOLDER_MANIFEST)}
    try:
        if names[FOLDER_MANIFEST]:  # reports of earlier versions have none
            manifest = read_manifest(read_file(folder / FOLDER_MANIFEST), str(folder))
            if manifest is None:
                raise ValueError("its manifest is none")
            if not all(os.path.lexists(folder / name) for name in manifest.files):
                return None
            manifest.check("report.json", read_file(folder / "report.json"), str(folder))
        elif not (names["report.json"] and names["index.html"]):
            return None
        return dict(json.loads(read_file(folder / "report.json")))
    except (OSError, ValueError, TypeError, StoreError) as error:
        raise StoreError(
            f"the report in '{folder}' is damaged ({one_line(error)}): remove that folder and run again"
        ) from error


def write_and_read_report(
    folder: Path,
    report: Mapping[str, Any],
    figures: Mapping[str, Figure],
    title: str,
    captions: Mapping[str, tuple[str, str]] | None = None,
) -> dict[str, Any]:
    """Write a report and return its numbers as they read back.

    Raises
    ------
    StoreError
        If they do not.
    """
    write_report(folder, report, figures, title=title, captions=captions)
    written = read_report(folder)
    if written is None:
        raise StoreError(f"the report in '{folder}' cannot be read back: remove that folder and run again")
    return written


def read_quality(store: Path) -> Quality:
    """Read the quality record of a scores store."""
    group = open_group(store)
    return Quality(array_in(group, "mse")[...], array_in(group, "ssim")[...] if "ssim" in group else None)


def picture_samples(stack: Stack, store: Path, basis: Representation, quality: Quality) -> dict[str, Figure]:
    """Draw ``comparison``, samples from all over the stack, and ``worst``, those that fared worst."""
    scores = open_array(store / "scores")
    data_range = stack.data_range or (0.0, 1.0)
    ssim = quality.ssim
    # Higher is better in both.
    goodness = ssim if ssim is not None else -quality.mse

    def pictured(draw: Any, indices: Sequence[int]) -> Figure:
        originals = np.stack([np.asarray(stack.samples[i]) for i in indices])
        rebuilt = basis.decode(np.stack([np.asarray(scores[i]) for i in indices]))
        shown = to_pixels(rebuilt, stack.dtype, data_range)
        names = [str(stack.names[i]) for i in indices]
        values = None if ssim is None else ssim[list(indices)]
        return draw(originals, shown, names, values, data_range, axes=stack.axes[1:])  # type: ignore[no-any-return]

    spread = np.linspace(0, stack.n_samples - 1, min(_SHOWN, stack.n_samples)).round().astype(int)
    return {
        "comparison": pictured(plots.comparison, list(map(int, spread))),
        "worst": pictured(plots.worst, list(map(int, np.argsort(goodness, kind="stable")[:_WORST]))),
    }


def disk_bytes(folder: Path) -> int:
    """Bytes of all files below a folder but the lists of checksums, which a store gets only when it is finished."""
    files = (os.path.join(root, file) for root, _, files in os.walk(folder) for file in files if file != CHECKSUMS)
    return sum(map(os.path.getsize, files))
