"""RedNet: the convolutional network of Alakkari 2020, section 5.5, for small inputs and few examples."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dpca.storage.errors import DataError
from dpca.torch.rednet_layers import CONVOLUTIONS, FULL, SIDE, figure


class CrossChannelNormalization(nn.Module):  # type: ignore[misc]
    """Normalize each value by its neighboring channels (Alakkari 2020, section 5.5.1).

    ::

        x_i / (1 + alpha / w sum_{j = i - w/2 + 1}^{i + w/2} x_j^2)^beta

    Channels outside of the range count as 0. With an even window, there is one more channel after i than before it, as
    in MATLAB. ``torch.nn.LocalResponseNorm`` has one more before.

    Parameters
    ----------
    window : int
        Number of channels w.
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
    """The network of figure 5.2: seven convolutions and three fully connected layers, 86.67 million parameters.

    Each convolution is followed by a ReLU and a cross-channel normalization, or, with ``normalization="batch"``, by a
    batch normalization and a ReLU. The figure does not list these layers. The source does not state the activation of
    the first two fully connected layers. Here they have a ReLU before the dropout, as AlexNet does, the model of this
    network. Weights are initialized as in Glorot & Bengio 2010, each group of filters separately; biases are 0.

    Parameters
    ----------
    channels : int
        Channels of the input: components of cells, or colors.
    classes : int
    normalization : {"cross-channel", "batch"}
    side : int
        Side of the input in pixels, 25 in the source.

    Raises
    ------
    DataError
        If the normalization is unknown, or the input is too small.

    Notes
    -----
    Inputs have shape (n, channels, side, side), and outputs are logits (n, classes). The parameters take 347 MB in
    float32, and training about three times that.
    """

    def __init__(
        self, channels: int = 3, classes: int = 14, *, normalization: str = "cross-channel", side: int = SIDE
    ) -> None:
        super().__init__()
        if normalization not in ("cross-channel", "batch"):
            raise DataError(f"normalization is {normalization!r}: give 'cross-channel' or 'batch'")
        figure(channels, classes, side)  # raises DataError if the input is too small
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
