"""Batches of scores or of samples for PyTorch's ``DataLoader``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from dpca.storage.batches import Batches
from dpca.storage.errors import DataError


class ScoresDataset(IterableDataset):  # type: ignore[misc]
    """The batches of a store as tensors, the same ones in the same order for any number of workers.

    Each item is a whole batch: give the loader ``batch_size=None``. Worker w of W takes every W-th batch. It opens the
    store itself, whether it was forked or spawned, and reads the windows that its batches touch: of samples as large
    as photographs no more than its share, of small ones all of them. Batches are read ahead without any worker, too:
    workers pay where something beside reading takes time.

    Parameters
    ----------
    batches : Batches
        What ``dpca.open_scores(path).batches(...)`` or ``dpca.storage.open_stack(path).batches(...)`` returns.

    Raises
    ------
    DataError
        For labels that make no tensor, or what are no batches.

    Notes
    -----
    Scores of cells and stacks with channels come as (m, channels, rows, columns), a view of what is stored channels
    last (``torch.channels_last``); everything else as it is stored. Labels must be numbers.

    Examples
    --------
    >>> import dpca
    >>> import numpy as np
    >>> from torch.utils.data import DataLoader
    >>> batches = dpca.open_scores("out.zarr").batches(8, labels=np.arange(30) % 2, shuffle=0)
    >>> dataset = dpca.torch.ScoresDataset(batches)
    >>> loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    >>> for epoch in range(2):
    ...     dataset.set_epoch(epoch)
    ...     for x, y in loader:
    ...         ...  # a step of the training
    """

    def __init__(self, batches: Batches) -> None:
        super().__init__()
        if not isinstance(batches, Batches):
            raise DataError(
                f"a dataset is made of batches, not of a {type(batches).__name__}: give "
                f"dpca.open_scores(path).batches(128)"
            )
        labels = batches.labels
        if labels is not None and (labels.dtype.kind not in "buif" or labels.dtype.itemsize > 8):
            raise DataError(
                f"labels of type {labels.dtype} make no tensor: number them, np.unique(labels, return_inverse=True)[1]"
            )
        self.batches = batches
        # In shared memory: workers that outlive an epoch are told of the next one.
        self._at = torch.tensor([batches.epoch, batches.start]).share_memory_()

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Give the batches of another epoch from now on, from number ``start`` on.

        Raises
        ------
        DataError
            If they are no numbers of an epoch and a batch.
        """
        self.batches.but(epoch=epoch, start=start)
        self._at[0], self._at[1] = epoch, start

    def __len__(self) -> int:
        """Return how many batches come, for all workers together."""
        return len(self._now())

    def __iter__(self) -> Iterator[Any]:
        """Yield tensors ``x``, or ``(x, y)``; in a worker its share of them."""
        batches, worker = self._now(), get_worker_info()
        if worker is not None:
            batches = batches.but(start=batches.start + worker.id, every=worker.num_workers)
        for batch in batches:
            x, *labels = (batch,) if batches.labels is None else batch
            x = torch.from_numpy(x)
            x = x.movedim(-1, 1) if batches.channels_last else x
            yield (x, _tensor(labels[0])) if labels else x

    def _now(self) -> Batches:
        epoch, start = self._at.tolist()
        return self.batches.but(epoch=epoch, start=start)


def _tensor(labels: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(labels, labels.dtype.newbyteorder("=")))
