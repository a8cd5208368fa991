"""Tables 4.1 to 4.4 of Alakkari 2020 as printed, by data set and strategy."""

from __future__ import annotations

from typing import NamedTuple


class PublishedStrategy(NamedTuple):
    """PublishedStrategy numbers of a strategy; None if the tables do not have one."""

    components: int | None = None
    """Components of each partition."""
    mse: float | None = None
    ssim: float | None = None
    ratio: float | None = None
    """Attributes to one score, as the thesis counts."""
    cpu: float | str | None = None
    """Seconds for each cell on an Intel Core i7-6700HQ (2.6 GHz), MATLAB."""
    gpu: float | None = None
    """Seconds for each cell on a GeForce GTX 960M, MATLAB."""
    first_mse: float | None = None
    """The MSE of table 4.1, if it has more digits."""


_RANDOM, _MEAN, _BOTH = "bands at random", "bands by mean", "bands by mean and variance"

#: Data set -> strategy -> numbers. Bands "from all" estimate means and variances from all samples.
PUBLISHED: dict[str, dict[str, PublishedStrategy]] = {
    "none": {},
    "lfw": {
        "cells 5 x 5": PublishedStrategy(5, 0.0009, 0.8859, 15.0, 0.0427, 0.3273),
        "cells 10 x 10": PublishedStrategy(20, 0.0004, 0.927, 15.0, 0.16, 0.295, first_mse=0.00041),
        "cells 25 x 25": PublishedStrategy(125, 0.00027, 0.9425, 15.0, 7.87, 3.19),
        "holistic": PublishedStrategy(1000, 0.0029, 0.71, 13.2, "hours"),
        _RANDOM: PublishedStrategy(125, 0.0091, 0.43, 12.5),
        f"{_MEAN}, from 100": PublishedStrategy(125, 0.0028, 0.72, 12.6),
        f"{_MEAN}, from 1,000": PublishedStrategy(125, 0.0017, 0.79, 12.6),
        f"{_MEAN}, from all": PublishedStrategy(125, 0.0015, 0.815, 12.8),
        f"{_BOTH}, from 100": PublishedStrategy(125, 0.0016, 0.79, 12.7),
        f"{_BOTH}, from 1,000": PublishedStrategy(125, 0.0009, 0.86, 12.6),
        f"{_BOTH}, from all": PublishedStrategy(125, 0.00074, 0.875, 12.6),
    },
    "celeba": {
        "cells 5 x 5": PublishedStrategy(5, 0.0014, 0.8375, 15.0, 0.44, 0.9),
        "cells 10 x 10": PublishedStrategy(20, 0.0009, 0.8768, 15.0, 1.92, 1.2845),
        "cells 25 x 25": PublishedStrategy(125, 0.0007, 0.89, 15.0, 63.3, 4.39),
        "holistic": PublishedStrategy(1000, 0.003, 0.72, cpu="hours"),
    },
}
DATA_SETS = tuple(PUBLISHED)
