"""The data sets of the studies, from a folder with their published files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.storage.images import decode
from dpca.storage.ingest import ingest
from dpca.storage.readers import open_reader
from dpca.storage.readers.permuted import Permuted
from dpca.storage.run import Run
from dpca.storage.stack import Stack


class MissingData(Exception):
    """A data set is missing. The message names the file."""


@dataclass(frozen=True)
class Setting:
    """Data and number of trials of a study.

    Parameters
    ----------
    data : Path
        Folder of the data sets.
    workspace : Path
        Folder for stores. Stores of an earlier run are reused.
    trials : int
        Number of runs with different orders of samples and different starts. Trial i has seed i.
    run : Run
        How stores are made and rules run.
    """

    data: Path
    workspace: Path
    trials: int = 10
    run: Run = Run()

    def file(self, name: str, what: str) -> Path:
        """Return the path of a file in the data folder, or raise `MissingData`."""
        path = self.data / name
        if not path.exists():
            raise MissingData(f"{what}: put it at '{path}'")
        return path

    def digits(self, part: str) -> tuple[Array, Array]:
        """MNIST's images (n, 784) uint8 and labels; ``part`` is "train" or "t10k"."""
        images, _ = (
            self.file(f"mnist/{part}-{kind}-ubyte.gz", "MNIST in its published form")
            for kind in ("images-idx3", "labels-idx1")
        )
        reader = open_reader(images)
        pixels = np.asarray(reader.fetch(range(len(reader))))
        return pixels.reshape(len(pixels), -1), np.asarray(reader.labels)

    def usps_digits(self) -> tuple[Array, Array]:
        """All USPS training digits (7291, 256), float64 in [-1, 1], and their labels."""
        images, labels = self._arrays("usps/zip_train.npz", "the USPS training digits")
        return images.reshape(len(images), -1).astype(np.float64), labels

    def cifar(self) -> tuple[Array, Array]:
        """The photographs of the CIFAR-10 subset, (5085, 32, 32, 3) uint8, and their labels."""
        return self._arrays("cifar10-5085.npz", "the CIFAR-10 subset")

    def _arrays(self, name: str, what: str) -> tuple[Array, Array]:
        with np.load(self.file(name, what)) as bundle:
            return bundle["images"], bundle["labels"]

    def faces(self) -> Stack:
        """Labeled Faces in the Wild, deep-funneled, in random order (seed 0), as a stack in the workspace."""
        return ingest(self._faces(), self.workspace / "lfw.zarr", run=self.run)

    def some_faces(self, count: int) -> Array:
        """The first photographs of `faces`, (count, 250, 250, 3) uint8, without a stack."""
        payloads = self._faces().fetch(range(count))
        return np.stack([decode(payload) for payload in payloads if isinstance(payload, bytes)])

    def face_archives(self) -> list[Path]:
        """The archives of Labeled Faces in the Wild."""
        tars = sorted(self.data.glob("lfw-deepfunneled*.tar"))
        if not tars:
            raise MissingData(f"the deep-funneled images of LFW: put them at '{self.data}/lfw-deepfunneled*.tar'")
        return tars

    def _faces(self) -> Permuted:
        return Permuted(open_reader(self.face_archives()), seed=0)
