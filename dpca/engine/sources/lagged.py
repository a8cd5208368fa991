"""Windows of consecutive samples as samples: delay embedding, and the blocks of spectral estimates."""

from __future__ import annotations

from dpca.engine.sources.derived import ComputedSource
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.types import Array, Region
from dpca.storage.errors import DataError


class LaggedSource(ComputedSource):
    """Windows of another source x: sample i is (x[i s], x[i s + l], ..., x[i s + (n_lags - 1) l]).

    ::

        samples     0 1 2 3 4 5 6 7
        window 0    x   x   x            n_lags = 3, lag = 2
        window 1      x   x   x          stride = 1

    s is the stride and l the lag.

    Windows are computed when they are read. A task reads the samples of its windows once, and ``(n_lags - 1) lag``
    further samples. A batch of windows takes ``n_lags`` times the memory of as many samples.

    Parameters
    ----------
    source : Source
    n_lags, lag, stride : int
        Samples of a window, steps between the samples of a window, and steps between two windows.

    Raises
    ------
    DataError
        If a window is longer than the source.
    """

    def __init__(self, source: Source, n_lags: int, lag: int = 1, stride: int = 1) -> None:
        span, n = (n_lags - 1) * lag + 1, source.shape[0]
        if span > n:
            raise DataError(
                f"a window of {n_lags:,} samples with lag {lag:,} spans {span:,} samples, and {source.name} has {n:,}: "
                f"give shorter windows"
            )
        shape = ((n - span) // stride + 1, n_lags, *source.shape[1:])
        super().__init__(source, shape, behind=span - 1, stride=stride)
        self.lag, self.chunks = lag, (self.chunks[0], n_lags, *source.chunks[1:])

    def compute(self, values: Array, first: int, samples: tuple[int, int], region: Region, out: Array) -> None:
        """Fill a box of windows."""
        for j in range(*region[0]):
            start = samples[0] * self.stride + j * self.lag - first
            out[:, j - region[0][0]] = values[start :: self.stride][: len(out)]

    def needed(self, region: Region) -> Region:
        """Return the box without its lags."""
        return region[1:]
