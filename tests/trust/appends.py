"""Appends and refits of damaged compressed stores: the result is either valid, or reported as damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import dpca
from dpca import CellPCA
from dpca.jobs import append_store, encode_store
from dpca.jobs.base.input_stack import KEPT_STACK
from dpca.representation.compressed.compressed_form import StoreForm
from dpca.storage import Stack, ingest, open_stack, verify
from dpca.storage.errors import DataError, StoreError
from dpca.storage.integrity.manifest import write_manifest
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images
from tests.jobs.compressed.test_encode_sequences import drifting
from tests.trust.damage import draw_damage

SAMPLES, MORE, ROWS = 70, 12, 32
#: Stores, and the stack appended to each. The samples of the last store miss the goal, so all are encoded again.
APPENDED = {"mean": "more", "promised": "more", "waves": "later", "kept": "more", "refitted": "flicker"}


def make_appendable(folder: Path) -> None:
    """Create stores in ``a``, others of the same shapes in ``b``, and the stacks to append."""
    for turn, name in enumerate("ab"):
        (here := folder / name).mkdir()
        images, maps = smooth_images(SAMPLES + MORE, (16, 12, 3), seed=turn), drifting(SAMPLES + MORE)[turn:, :16, :16]
        rng = np.random.default_rng(turn)
        pattern = rng.integers(0, 255, (1, 16, 12, 3), dtype=np.uint8)  # that comes and goes
        flicker = rng.integers(0, 2, (MORE, 1, 1, 1), dtype=np.uint8) * pattern
        stacks = {
            "first": (images[:SAMPLES], (0, 255)),
            "more": (images[SAMPLES:], (0, 255)),
            "flicker": (flicker, (0, 255)),
            "days": (maps[: SAMPLES - turn], (-6, 6)),
            "later": (maps[SAMPLES:], (-6, 6)),
        }
        for stack, (values, stated) in stacks.items():
            np.save(here / f"{stack}.npy", values)
            ingest(
                here / f"{stack}.npy",
                here / f"{stack}-stack.zarr",
                reading=ReadOptions(data_range=stated),
                run=Run(threads=1),
            )
        for stack in ("first", "days"):
            CellPCA(12, cell_shape=8, shared=True).fit(here / f"{stack}-stack.zarr").save(here / f"{stack}-model.zarr")
        with patch.object(StoreForm, "rows", ROWS), patch.object(StoreForm, "shard_rows", ROWS):
            for store, stack, goal in (
                ("mean", "first", {"psnr": 30.0}),
                ("promised", "first", {"max_error": 3.0}),
                ("waves", "days", {"psnr": 45.0}),
            ):
                encode_store(
                    open_stack(here / f"{stack}-stack.zarr"),
                    here / f"{stack}-model.zarr",
                    here / f"{store}.zarr",
                    **goal,
                )
        shutil.copytree(here / "mean.zarr", here / "refitted.zarr")
        shutil.copytree(here / "mean.zarr", here / "kept.zarr")
        shutil.copytree(here / "first-stack.zarr", here / "kept.zarr" / KEPT_STACK)
        write_manifest(here / "kept.zarr")


class AppendTrial:
    """Damages fresh copies of stores and then appends samples to them.

    Parameters
    ----------
    folder : Path
        Where `make_appendable` made them.
    scratch : Path
        For the damaged copies.

    Attributes
    ----------
    whole : Path
        The undamaged stores.
    refused, accepted : int
        Appends so far that raised an error, and that left a longer store.
    """

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.whole, self._other, self._here = folder / "a", folder / "b", scratch / "out.zarr"
        self._new = {name: open_stack(self.whole / f"{stack}-stack.zarr") for name, stack in APPENDED.items()}
        self._used: dict[str, set[str]] = {store: set() for store in APPENDED}
        self.refused = self.accepted = 0
        self._calm, self._values = {}, {}
        for store in APPENDED:
            self._begin(store)
            self._append(store, self._new[store])
            self._calm[store], self._values[store] = snapshot(self._here), self._read(store)

    def run(self, store: str, rng: np.random.Generator) -> list[str]:
        """Damage a store once and append to it; return the faults, which should be none."""
        self._begin(store)
        done, _ = draw_damage(self._here, self._other / f"{store}.zarr", rng, self._used[store])
        return [f"{store}: {done}: {wrong}" for wrong in self._judge(store)]

    def swap(self, store: str, one: str, two: str) -> list[str]:
        """Do the same where two files are swapped."""
        self._begin(store)
        content = (self._here / one).read_bytes()
        (self._here / one).write_bytes((self._here / two).read_bytes())
        (self._here / two).write_bytes(content)
        return [f"{store}: swapped {one}, {two}: {wrong}" for wrong in self._judge(store)]

    def _begin(self, store: str) -> None:
        shutil.rmtree(self._here.parent, ignore_errors=True)
        self._here.parent.mkdir(parents=True)
        shutil.copytree(self.whole / f"{store}.zarr", self._here)

    def _append(self, store: str, given: Stack) -> None:
        original = open_stack(self.whole / "first-stack.zarr") if store == "refitted" else None
        append_store(self._here, given, drift="refuse" if original is None else "refit", original=original)

    def _judge(self, store: str) -> Iterator[str]:
        before = snapshot(self._here)
        try:
            self._append(store, self._new[store])
        except (DataError, StoreError):
            self.refused += 1
            if snapshot(self._here) != before:
                yield "the refused append changed the store"
        except Exception as error:
            yield f"the append raises {error!r}"
        else:
            self.accepted += 1
        try:
            problems = verify(self._here)
        except (DataError, StoreError) as error:
            problems = [str(error)]
        if not problems and snapshot(self._here) != self._calm[store]:
            yield "it is told as whole and is not"
        try:
            found = self._read(store)
        except (DataError, StoreError):
            return
        except Exception as error:
            yield f"reading raises {error!r}"
            return
        expected = self._values[store]
        n = len(found[0])
        if any(not np.array_equal(part, whole[:n]) for part, whole in zip(found, expected, strict=True)) and not (
            store == "refitted" and n == SAMPLES
        ):
            yield "other values are read in silence"

    def _read(self, kind: str) -> list[Any]:
        store = dpca.open_compressed(self._here)
        found = [store[...], store.names, *store.quality.values()]
        if kind == "kept":
            found.append(open_stack(self._here / KEPT_STACK).samples[...])
        return found


def snapshot(root: Path) -> dict[str, Any]:
    """Return everything below a folder: contents of files, where links lead, and what is neither."""

    def content(path: Path) -> Any:
        if path.is_symlink():
            return os.readlink(path)
        return path.read_bytes() if path.is_file() else path.stat().st_mode

    kept: Callable[[Path], bool] = lambda path: path.is_symlink() or not path.is_dir()  # noqa: E731
    return {path.relative_to(root).as_posix(): content(path) for path in root.rglob("*") if kept(path)}
