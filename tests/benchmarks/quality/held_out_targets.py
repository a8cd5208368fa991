"""How well targets of quality are met on images that no part of a fit has seen; prints a table.

    python tests/benchmarks/quality/held_out_targets.py --source lfw.zarr --cells 10 25

Every fifth image of the stack is the test set, from the one that ``--first`` names on. The others are fitted, once with
``validation_fraction`` and once without: "promised" is what the fit says, with its standard error (0: it knows all
samples that it speaks of); "measured" is what reconstructions of the test set have, with the standard error of their
mean, which is what chance alone does to it; "off" is its relative difference from the target. All three are relative.
SSIM is that of pixels; errors are measured before rounding, as targets are defined, and "as pixels" says what they are
after it.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca import CellPCA
from dpca.kernels.pixels import to_pixels
from dpca.kernels.quality import mse_per_sample, psnr_from_mse, ssim_per_sample
from dpca.storage import open_stack
from dpca.storage.remote.tasks import run_in_order

Array = np.ndarray[Any, Any]

TARGETS: dict[str, float] = {"target_psnr": 33.0, "target_mse": 0.0004, "target_ssim": 0.95, "ratio": 15.0}
ROWS = 64


@dataclass(frozen=True)
class Quality:
    """One number an image of the test set."""

    mse: Array
    pixel_mse: Array
    ssim: Array

    def of(self, name: str) -> tuple[float, float, float]:
        """Return the measure that a target names: its value, its standard error, its value once values are pixels."""
        if name == "target_ssim":
            return float(self.ssim.mean()), error_of(self.ssim), float(self.ssim.mean())
        mse, pixel, error = self.mse.mean(), self.pixel_mse.mean(), error_of(self.mse)
        if name == "target_mse":
            return float(mse), error, float(pixel)
        return float(psnr_from_mse(mse)), 10 / np.log(10) * error / float(mse), float(psnr_from_mse(pixel))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="stack store of images, which is held in memory")
    parser.add_argument("--cells", type=int, nargs="+", default=[10], help="sides of cells")
    parser.add_argument("--fraction", type=float, default=0.2, help="validation_fraction")
    parser.add_argument("--max-components", type=int, help="of a cell; default that of CellPCA")
    parser.add_argument("--first", type=int, default=2, choices=range(5), help="first image of the test set")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=1, help="draw the validation samples so many times")
    options = parser.parse_args()
    stack = open_stack(options.source)
    images, value_range = np.asarray(stack.samples[:]), stack.data_range or (0.0, 1.0)
    test = np.arange(options.first, len(images), 5)
    seen, unseen = np.delete(images, test, axis=0), images[test]
    del images
    print(f"{len(seen):,} images to fit, {len(unseen):,} to measure on")
    head = f"{'cell':>4} {'target':<19}{'validation':>10}{'ratio':>8}{'promised':>11}{'± %':>6}"
    print(f"{head}{'measured':>11}{'± %':>6}{'off %':>8}{'as pixels':>11}{'seconds':>9}")
    for cell in options.cells:
        for name in options.targets:
            wanted = TARGETS[name]
            fractions = [None] if name == "ratio" else [None] + [options.fraction] * options.seeds
            for seed, fraction in enumerate(fractions):
                settings = {name: wanted, "max_components": options.max_components, "validation_fraction": fraction}
                began = time.perf_counter()
                model = CellPCA(cell_shape=cell, data_range=value_range, random_state=seed, **settings).fit(seen)
                seconds = time.perf_counter() - began
                ratio = model.n_features_in_ / model.ranks_.sum()
                row = f"{cell:>4} {name + f'={wanted:g}':<19}{fraction or '-':>10}{ratio:>8.4g}"
                if name == "ratio":
                    print(f"{row}{ratio:>11.6g}{'':>6}{ratio:>11.6g}{'':>6}{100 * (ratio / wanted - 1):>8.2f}")
                    continue
                value, error, pixels = measured(model, unseen, value_range).of(name)
                promised, own = model.target_reached_, model.target_standard_error_
                print(
                    f"{row}{promised:>11.4g}{100 * own / promised:>6.2f}{value:>11.4g}{100 * error / value:>6.2f}"
                    f"{100 * (value / wanted - 1):>8.2f}{pixels:>11.4g}{seconds:>9.1f}",
                    flush=True,
                )


def measured(model: CellPCA, samples: Array, value_range: tuple[float, float]) -> Quality:
    """Reconstruct samples and measure each."""
    width, basis = value_range[1] - value_range[0], model.basis_
    low = value_range[0]

    def block(start: int) -> tuple[Array, Array, Array]:
        x = samples[start : start + ROWS]
        y = basis.decode(basis.encode(x))
        difference = (y - x).reshape(len(x), -1).astype(np.float64)
        mse = np.einsum("ij,ij->i", difference, difference) / difference.shape[1] / width**2
        pixels = to_pixels(y, x.dtype, (low, low + width))
        ssim = ssim_per_sample(x, pixels, data_range=width, n_spatial=model.grid_.n_spatial)
        return mse, mse_per_sample(x, pixels, data_range=width), ssim

    parts = run_in_order(block, [(start,) for start in range(0, len(samples), ROWS)])
    return Quality(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def error_of(values: Array) -> float:
    """Return the standard error of a mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


if __name__ == "__main__":
    main()
