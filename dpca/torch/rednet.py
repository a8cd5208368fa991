"""RedNet: the convolutional network for small inputs and few examples of Alakkari 2020, section 5.5."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dpca.storage.errors import DataError
from dpca.torch.rednet_layers import CONVOLUTIONS, FULL, SIDE, figure


class CrossChannelNormalization(nn.Module):  # type: ignore[misc]
    """Divide each value by what its neighbors among the channels come to (Alakkari 2020, section 5.5.1).

    ::

        x_i / (1 + alpha / w sum_{j = i - w/2 + 1}^{i + w/2} x_j^2)^beta

    Channels that are not there count as 0. ``torch.nn.LocalResponseNorm`` with an even window takes one more channel
    before i than behind it; here it is one more behind, as in MATLAB.

    Parameters
    ----------
    window : int
        Channels w.
    alpha, beta : float
    """

    def __init__(self, window: int = 16, alpha: float = 0.02, beta: float = 0.75) -> None:
        super().__init__()
        self.window, self.alpha, self.beta = window, alpha, beta

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized maps (n, channels, ...)."""
        flat = x.reshape(len(x), 1, x.shape[1], -1)
        before = (self.window - 1) // 2
        squares = F.pad(flat * flat, (0, 0, before, self.window - 1 - before))
        mean = F.avg_pool2d(squares, (self.window, 1), stride=1)
        return (flat * (1 + self.alpha * mean) ** -self.beta).reshape(x.shape)


class RedNet(nn.Module):  # type: ignore[misc]
    """The network of figure 5.2: seven convolutions and three full layers, 86.67 million parameters.

    Each convolution is followed by a ReLU and a normalization across channels; with ``normalization="batch"`` by a
    batch normalization and a ReLU. The figure lists neither; behind the first two full layers, where the text is
    silent, there is a ReLU before the dropout, as in the AlexNet that the network is modeled on. Weights are drawn by
    Glorot & Bengio 2010, each group of filters by itself; biases are 0.

    Parameters
    ----------
    channels : int
        Of the input: components of cells, or colors.
    classes : int
    normalization : {"cross-channel", "batch"}
    side : int
        Of the input, 25 in the source.

    Raises
    ------
    DataError
        For another normalization, and for inputs that are too small.

    Notes
    -----
    Takes inputs (n, channels, side, side), and returns logits (n, classes). Costs 347 MB of parameters in float32, and
    about three times that in training.
    """

    def __init__(
        self, channels: int = 3, classes: int = 14, *, normalization: str = "cross-channel", side: int = SIDE
    ) -> None:
        super().__init__()
        if normalization not in ("cross-channel", "batch"):
            raise DataError(f"normalization is {normalization!r}: give 'cross-channel' or 'batch'")
        try:
            figure(channels, classes, side)
        except ValueError as error:
            raise DataError(f"inputs have a side of {side}, and {error}") from error
        layers: list[nn.Module] = []
        for layer in CONVOLUTIONS:
            before, behind = layer.padding(side)
            convolution = nn.Conv2d(channels, layer.channels, layer.kernel, layer.stride, groups=layer.groups)
            layers += [nn.ZeroPad2d((before, behind, before, behind)), convolution]
            if normalization == "batch":
                layers += [nn.BatchNorm2d(layer.channels), nn.ReLU()]
            else:
                layers += [nn.ReLU(), CrossChannelNormalization()]
            channels, side = layer.channels, layer.side(side)
        layers.append(nn.Flatten())
        units = side * side * channels
        for count in FULL:
            layers += [nn.Linear(units, count), nn.ReLU(), nn.Dropout(0.5)]
            units = count
        layers.append(nn.Linear(units, classes))
        self.layers = nn.Sequential(*layers)
        for module in self.layers:
            if isinstance(module, nn.Conv2d | nn.Linear):
                for group in module.weight.data.chunk(getattr(module, "groups", 1)):
                    nn.init.xavier_uniform_(group)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes)."""
        logits: Tensor = self.layers(x)
        return logits
