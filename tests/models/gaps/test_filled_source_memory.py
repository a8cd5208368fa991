"""The memory of reads that fill missing values by a model."""

from pathlib import Path

import numpy as np

from dpca import PCA
from dpca.engine.sources.source import as_source
from dpca.models.gaps.filled_source import GapFilledSource
from tests.helpers.traced import traced_peak


def test_reads_of_filled_samples_take_what_is_planned(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(120, 3)) @ rng.normal(size=(3, 40 * 50))).reshape(120, 40, 50)
    x[rng.random(x.shape) < 0.2] = np.nan
    PCA(3, gaps="iterate").fit(x).save(tmp_path / "model")
    source = GapFilledSource(as_source(x), str(tmp_path / "model"), (-10.0, 10.0))
    region = ((0, 40), (0, 50))
    planned, read, out = source.extra_bytes(region), source.reader(), np.empty((120, 40, 50))
    read((0, 120), region, out)  # the model is loaded once
    peak, _ = traced_peak(lambda: None, lambda _: read((0, 120), region, out), planned)
    assert not np.isnan(out).any()
    assert planned / 2 <= peak <= planned + 2**16
