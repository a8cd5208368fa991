"""The data sets of the tables, from a folder that holds them as published."""

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
    """A data set is not where it should be; the message says what to put there."""


@dataclass(frozen=True)
class Setting:
    """What all tables are computed with.

    Parameters
    ----------
    data : Path
        Folder of the data sets.
    workspace : Path
        Where stores may grow; those of an earlier run are used again.
    trials : int
        Runs with different orders of samples and different starts, numbered from 0: the seeds.
    run : Run
        How stores are made.
    """

    data: Path
    workspace: Path
    trials: int = 10
    run: Run = Run()

    def file(self, name: str, what: str) -> Path:
        """Return the path of a file in the data folder."""
        path = self.data / name
        if not path.exists():
            raise MissingData(f"{what} is needed as '{path}'")
        return path

    def digits(self, part: str) -> tuple[Array, Array]:
        """MNIST's images (n, 784) uint8 and labels; ``part`` is "train" or "t10k"."""
        self.file(f"mnist/{part}-labels-idx1-ubyte.gz", "MNIST in its published form")
        reader = open_reader(self.file(f"mnist/{part}-images-idx3-ubyte.gz", "MNIST in its published form"))
        pixels = np.asarray(reader.fetch(range(len(reader))))
        return pixels.reshape(len(pixels), -1), np.asarray(reader.labels)

    def cifar(self) -> Array:
        """The images of the CIFAR-10 subset, (5085, 3072) uint8."""
        images = self.cifar_images()
        return np.ascontiguousarray(images.reshape(len(images), -1))

    def cifar_images(self) -> Array:
        """The same as photographs, (5085, 32, 32, 3)."""
        return self._cifar("images")

    def cifar_labels(self) -> Array:
        """What they show, (5085,) integers."""
        return self._cifar("labels")

    def _cifar(self, name: str) -> Array:
        with np.load(self.file("cifar10-5085.npz", "the CIFAR-10 subset")) as bundle:
            values: Array = bundle[name]
        return values

    def faces(self) -> Stack:
        """Labeled Faces in the Wild, deep-funneled, in random order (seed 0), as a stack in the workspace."""
        return ingest(self._faces(), self.workspace / "lfw.zarr", run=self.run)

    def some_faces(self, count: int) -> Array:
        """The first of them, (count, 250, 250, 3) uint8, decoded anew."""
        payloads = self._faces().fetch(range(count))
        return np.stack([decode(payload) for payload in payloads if isinstance(payload, bytes)])

    def face_archives(self) -> list[Path]:
        """The archives that they come in."""
        tars = sorted(self.data.glob("lfw-deepfunneled*.tar"))
        if not tars:
            raise MissingData(f"the deep-funneled LFW images are needed as '{self.data}/lfw-deepfunneled*.tar'")
        return tars

    def _faces(self) -> Permuted:
        return Permuted(open_reader(self.face_archives()), seed=0)
