"""The number of threads of this process, by Dask's settings."""

from __future__ import annotations

import dask
import pytest
from dask.system import CPU_COUNT

from dpca import Run, StreamingPCA
from dpca.storage.remote.memory import thread_count
from tests.conftest import smooth_images


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, CPU_COUNT),
        ({"scheduler": "threads"}, CPU_COUNT),
        ({"scheduler": "synchronous", "num_workers": 3}, 1),
        ({"scheduler": "sync"}, 1),
        ({"scheduler": "single-threaded"}, 1),
        ({"num_workers": 3}, 3),
    ],
)
def test_settings_of_dask_are_followed(settings: dict[str, object], count: int) -> None:
    with dask.config.set(settings):
        assert thread_count() == count
        assert Run().n_threads == count
        assert Run(threads=5).n_threads == 5


def test_a_fit_with_one_thread_has_one_segment() -> None:
    """Its result is that of a fit on one thread, which is not the one of several segments that are merged."""
    x = smooth_images(3000, (12, 12)).reshape(3000, -1)
    with dask.config.set(scheduler="synchronous"):
        model = StreamingPCA(3, method="incremental-svd", batch_size=100).fit(x)
    one, three = (StreamingPCA(3, method="incremental-svd", batch_size=100).fit(x, run=Run(threads=n)) for n in (1, 3))
    assert model.components_.tobytes() == one.components_.tobytes()
    assert model.components_.tobytes() != three.components_.tobytes()
