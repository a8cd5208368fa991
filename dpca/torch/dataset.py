"""Batches of scores or of samples for the ``DataLoader`` of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from dpca.storage.arrays.training_batches import Batches
from dpca.storage.errors import DataError


class ScoresDataset(IterableDataset):  # type: ignore[misc]
    """The batches of a store as tensors, in the same order for any number of workers.

    Each item is a whole batch, so the loader requires ``batch_size=None``. Worker w of W yields every W-th batch. A
    worker opens the store itself, whether it is forked or spawned, and reads the shuffle windows of its batches. For
    samples as large as photographs it reads only its share; for small samples, all of them. Batches are read ahead
    even without workers. Use workers if other steps than reading take time.

    Parameters
    ----------
    batches : Batches
        The result of ``dpca.open_scores(path).batches(...)`` or ``dpca.storage.open_stack(path).batches(...)``.

    Raises
    ------
    DataError
        If labels cannot be converted to a tensor, or ``batches`` is not a `Batches`.

    Notes
    -----
    Scores of cells and stacks with channels have shape (m, channels, rows, columns), as a view in the memory format
    ``torch.channels_last``. Other samples keep their stored shape. Labels must be numbers.

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
                f"batches is of type {type(batches).__name__}: give a Batches, such as "
                f"dpca.open_scores(path).batches(128)"
            )
        labels = batches.labels
        if labels is not None and (labels.dtype.kind not in "buif" or labels.dtype.itemsize > 8):
            raise DataError(
                f"labels of dtype {labels.dtype} cannot be converted to a tensor: number them with "
                f"np.unique(labels, return_inverse=True)[1]"
            )
        self.batches = batches
        # In shared memory, so that persistent workers receive the number of the next epoch.
        self._at = torch.tensor([batches.epoch, batches.start]).share_memory_()

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Set the epoch and the number of its first batch for the following iterations.

        Raises
        ------
        DataError
            If ``epoch`` or ``start`` is not a valid number.
        """
        self.batches.replace(epoch=epoch, start=start)
        self._at[0], self._at[1] = epoch, start

    def __len__(self) -> int:
        """Return the number of batches of all workers together."""
        return len(self._now())

    def __iter__(self) -> Iterator[Any]:
        """Yield tensors ``x`` or ``(x, y)``; in a worker, only the batches of this worker."""
        batches, worker = self._now(), get_worker_info()
        if worker is not None:
            batches = batches.replace(start=batches.start + worker.id, every=worker.num_workers)
        for batch in batches:
            x, *labels = (batch,) if batches.labels is None else batch
            x = torch.from_numpy(x)
            x = x.movedim(-1, 1) if batches.channels_last else x
            yield (x, _tensor(labels[0])) if labels else x

    def _now(self) -> Batches:
        epoch, start = self._at.tolist()
        return self.batches.replace(epoch=epoch, start=start)


def _tensor(labels: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(labels, labels.dtype.newbyteorder("=")))
