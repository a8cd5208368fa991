"""The layers of RedNet as a table (Alakkari 2020, figure 5.2), and their sizes and numbers of parameters."""

from __future__ import annotations

from typing import NamedTuple

from dpca.storage.errors import DataError


class Convolution(NamedTuple):
    """A convolution of the table."""

    channels: int
    """Channels of the output."""
    kernel: int
    stride: int = 1
    groups: int = 1
    same: bool = False
    """Whether the input is padded, so that the output side is the input side divided by the stride, rounded up."""

    def padding(self, side: int) -> tuple[int, int]:
        """Return the number of zeros before and after an input of this side; an odd number has one more after."""
        if not self.same:
            return 0, 0
        total = max(0, (self.side(side) - 1) * self.stride + self.kernel - side)
        return total // 2, total - total // 2

    def side(self, side: int) -> int:
        """Return the side of the output."""
        return -(-side // self.stride) if self.same else (side - self.kernel) // self.stride + 1


class Row(NamedTuple):
    """A layer of figure 5.2."""

    name: str
    shape: tuple[int, int, int]
    """Shape of the output: two sides and channels, as in the figure."""
    n_parameters: int


CONVOLUTIONS = (
    Convolution(128, 6),
    Convolution(256, 4, stride=2, groups=2),
    Convolution(256, 2, same=True),
    Convolution(512, 3, stride=2, same=True),
    Convolution(1024, 3, stride=2, same=True),
    Convolution(4096, 2, stride=2, groups=2, same=True),
    Convolution(4096, 2, stride=2, same=True),
)
#: Units of the fully connected layers except the last one, which has one unit for each class.
FULL = (1024, 512)
SIDE = 25


def figure(channels: int = 3, classes: int = 14, side: int = SIDE) -> list[Row]:
    """Return the layers with parameters.

    Raises
    ------
    DataError
        If the input is too small, so that a convolution has no output.
    """
    rows: list[Row] = []
    given = side
    for number, layer in enumerate(CONVOLUTIONS, 1):
        side = layer.side(side)
        if side < 1:
            raise DataError(f"side is {given}: convolution {number} has no output, give at least {SIDE}")
        weights = layer.kernel**2 * channels // layer.groups * layer.channels
        name = f"{'Grouped_' if layer.groups > 1 else ''}Conv_{number}"
        rows.append(Row(name, (side, side, layer.channels), weights + layer.channels))
        channels = layer.channels
    units = side * side * channels
    for number, count in enumerate((*FULL, classes), 1):
        rows.append(Row(f"FC_{number}", (1, 1, count), (units + 1) * count))
        units = count
    return rows
