"""RedNet by running: the figure's sizes, the normalization as loops, gradients. Where torch is."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.storage import DataError

torch = pytest.importorskip("torch")

from dpca.torch import RedNet  # noqa: E402
from dpca.torch.rednet import CrossChannelNormalization  # noqa: E402
from dpca.torch.rednet_layers import figure  # noqa: E402


def test_sizes_and_parameters_are_those_of_the_figure() -> None:
    network, rows = RedNet().eval(), iter(figure())
    assert sum(p.numel() for p in network.parameters()) == 86_671_502
    x = torch.zeros(2, 3, 25, 25)
    for layer in network.layers:
        x = layer(x)
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            row = next(rows)
            height, width, channels = row.shape
            assert x.numel() == 2 * height * width * channels
            assert x.shape[1] == channels
            assert sum(p.numel() for p in layer.parameters()) == row.n_parameters
    assert x.shape == (2, 14)
    assert next(rows, None) is None


def test_the_normalization_is_its_formula() -> None:
    rng = np.random.default_rng(0)
    for channels in (5, 16, 40):
        x = (10 * rng.normal(size=(2, channels, 3, 2))).astype(np.float32)
        expected = np.empty_like(x, dtype=np.float64)
        for i in range(channels):
            total = np.zeros(x[:, 0].shape)
            for j in range(max(0, i - 7), min(channels - 1, i + 8) + 1):
                total += x[:, j].astype(np.float64) ** 2
            expected[:, i] = x[:, i] / (1 + 0.02 / 16 * total) ** 0.75
        found = CrossChannelNormalization()(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_batch_normalization_stands_before_the_rectifier() -> None:
    names = [type(layer).__name__ for layer in RedNet(normalization="batch", classes=24).layers]
    assert names[:4] == ["ZeroPad2d", "Conv2d", "BatchNorm2d", "ReLU"]
    assert "CrossChannelNormalization" not in names
    with pytest.raises(DataError, match="'layer'"):
        RedNet(normalization="layer")
    with pytest.raises(DataError, match="side"):
        RedNet(side=8)
