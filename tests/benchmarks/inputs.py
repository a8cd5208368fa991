"""What the benchmarks read: the real data at ../shared/data, or small made inputs that show that they run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dpca.pipelines.studies.data import Setting
from dpca.storage import Stack, ingest
from dpca.storage.survey import ReadOptions
from tests.conftest import DATA, smooth_images

Array = np.ndarray[Any, Any]

#: Side of the cells that stacks are laid out for.
CELL = 10


@dataclass
class Inputs:
    """Inputs, each made when it is first asked for.

    Parameters
    ----------
    folder : Path
        Where they are made, and where benchmarks may write.
    source : sequence of path-like, optional
        Photographs; default LFW.
    rounds : int
        Times that sides take turns.
    quick : bool
        Whether to make small inputs in the place of real ones.
    """

    folder: Path
    source: list[str] | None = None
    rounds: int = 3
    quick: bool = False

    @cached_property
    def photographs(self) -> list[str]:
        """Archives or a folder of JPEGs, all of one size."""
        if self.source:
            return self.source
        if self.quick:
            made = self.folder / "photographs"
            made.mkdir()
            for i, pixels in enumerate(smooth_images(160, (26, 25))):
                Image.fromarray(pixels).save(made / f"{i:03d}.jpg")
            return [str(made)]
        tars = sorted(DATA.glob("lfw-deepfunneled-*.tar"))
        if not tars:
            sys.exit("LFW is not in ../shared/data: give photographs with --source")
        return [str(tar) for tar in tars]

    @cached_property
    def stack(self) -> Stack:
        """The photographs."""
        return ingest(self.photographs, self.folder / "stack.zarr", cell_shape=CELL)

    def few(self, n: int) -> Stack:
        """Return a stack of the first photographs."""
        np.save(self.folder / f"{n}.npy", self.stack.samples[:n])
        return ingest(self.folder / f"{n}.npy", self.folder / f"{n}.zarr", cell_shape=CELL)

    @cached_property
    def small(self) -> Array:
        """The photographs in 32 x 32 pixels (n, 3072): more than 10,000, none twice."""
        side = 8 if self.quick else 32
        stack = ingest(self.photographs, self.folder / "small.zarr", reading=ReadOptions(resize=(side, side)))
        return np.asarray(stack.samples[:]).reshape(stack.n_samples, -1)

    @cached_property
    def wide(self) -> Array:
        """Photographs of 218 x 178 pixels, as CelebA's are, cut out of the middle (n, 116412)."""
        crop, n = ((18, 14), 96) if self.quick else ((218, 178), 3000)
        top, left = ((a - b) // 2 for a, b in zip(self.stack.sample_shape[:2], crop, strict=True))
        rows = np.asarray(self.stack.samples[:n, top : top + crop[0], left : left + crop[1]])
        return np.random.default_rng(0).permutation(rows).reshape(len(rows), -1)

    @cached_property
    def digits(self) -> tuple[Array, Array]:
        """MNIST's 60,000 training images (n, 784) and their labels."""
        if self.quick:
            return smooth_images(600, (12, 12)).reshape(600, -1), np.arange(600) % 10
        return Setting(DATA, self.folder).digits("train")

    @cached_property
    def cifar(self) -> Array:
        """The CIFAR-10 subset (5085, 3072)."""
        images = smooth_images(300, (12, 12, 3)) if self.quick else Setting(DATA, self.folder).cifar()[0]
        return images.reshape(len(images), -1)
