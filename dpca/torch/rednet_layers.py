"""RedNet as a table (Alakkari 2020, figure 5.2), and what follows from it by arithmetic: sizes and parameters."""

from __future__ import annotations

from typing import NamedTuple


class Convolution(NamedTuple):
    """A convolution of the table."""

    channels: int
    """Of its output."""
    kernel: int
    stride: int = 1
    groups: int = 1
    same: bool = False
    """Whether the input is padded so that its side is divided by the stride and rounded up; otherwise it is not."""

    def padding(self, side: int) -> tuple[int, int]:
        """Return how many zeros stand before and behind an input of this side; of an odd number one more behind."""
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
    """Of its output: two sides and channels, as the figure states them."""
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
#: Units of the full layers before the last one, whose units are the classes.
FULL = (1024, 512)
SIDE = 25


def figure(channels: int = 3, classes: int = 14, side: int = SIDE) -> list[Row]:
    """Return the layers that hold parameters.

    Raises
    ------
    ValueError
        If the input is so small that a convolution has no output.
    """
    rows: list[Row] = []
    for number, layer in enumerate(CONVOLUTIONS, 1):
        side = layer.side(side)
        if side < 1:
            raise ValueError(f"convolution {number} has no output: give larger inputs, of {SIDE} x {SIDE}")
        weights = layer.kernel**2 * channels // layer.groups * layer.channels
        name = f"{'Grouped_' if layer.groups > 1 else ''}Conv_{number}"
        rows.append(Row(name, (side, side, layer.channels), weights + layer.channels))
        channels = layer.channels
    units = side * side * channels
    for number, count in enumerate((*FULL, classes), 1):
        rows.append(Row(f"FC_{number}", (1, 1, count), (units + 1) * count))
        units = count
    return rows
