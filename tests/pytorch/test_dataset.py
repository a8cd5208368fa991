"""Batches as tensors with any number of workers; without PyTorch, an error says how to install it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import dpca
from dpca.storage import DataError, open_stack

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")


@pytest.fixture
def batches(tmp_path: Path) -> Any:
    x = np.arange(300, dtype=np.float32)[:, None, None, None] + np.zeros((4, 5, 3), np.float32)
    zarr.create_array(str(tmp_path / "x"), data=x, chunks=(7, 4, 5, 3))
    return open_stack(tmp_path / "x").batches(16, labels=np.arange(300), shuffle=3)


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed")
def test_without_pytorch_a_sentence_says_what_to_install() -> None:
    with pytest.raises(DataError, match=r"dask-dpca\[torch\]"):
        dpca.torch.ScoresDataset  # noqa: B018
    with pytest.raises(AttributeError):
        dpca.torch.Nothing  # noqa: B018


@needs_torch
def test_any_number_of_workers_gives_the_same_tensors_in_the_same_order(batches: Any) -> None:
    import torch
    from torch.utils.data import DataLoader

    dataset = dpca.torch.ScoresDataset(batches)
    expected = list(batches)
    for workers in (0, 1, 2):
        loader = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers == 2)
        assert len(loader) == len(expected)
        for epoch, start in ((0, 0), (1, 0), (1, 5)):
            dataset.set_epoch(epoch, start)
            found = list(loader)
            assert len(found) == len(dataset) == len(expected) - start
            for (x, y), (rows, labels) in zip(found, batches.replace(epoch=epoch, start=start), strict=True):
                assert x.shape == (len(rows), 3, 4, 5)
                assert x.is_contiguous(memory_format=torch.channels_last)
                np.testing.assert_array_equal(x.permute(0, 2, 3, 1).numpy(), rows)
                np.testing.assert_array_equal(y.numpy(), labels)
        dataset.set_epoch(0)


@needs_torch
def test_what_makes_no_tensor_is_refused(batches: Any, tmp_path: Path) -> None:
    named = open_stack(tmp_path / "x").batches(16, labels=[str(i) for i in range(300)])
    with pytest.raises(DataError, match=r"np\.unique"):
        dpca.torch.ScoresDataset(named)
    with pytest.raises(DataError, match="list"):
        dpca.torch.ScoresDataset([1])
    swapped = open_stack(tmp_path / "x").batches(300, labels=np.arange(300, dtype=">i4"))
    ((_, labels),) = dpca.torch.ScoresDataset(swapped)
    np.testing.assert_array_equal(labels.numpy(), np.arange(300))
    dataset = dpca.torch.ScoresDataset(batches)
    with pytest.raises(DataError, match="epoch"):
        dataset.set_epoch(-1)
