"""Tables 4.1 to 4.4 of Alakkari 2020 as they are printed, by what was measured and how many components it had."""

from __future__ import annotations

from dataclasses import dataclass

#: What ``compare`` can be.
DATA_SETS = ("none", "lfw", "celeba")


@dataclass(frozen=True)
class PublishedQuality:
    """A column of a table; None where the table has no such line.

    Attributes
    ----------
    table : str
        Its number.
    components : int
        Of each partition.
    mse, ssim : float or None
    ratio : float or None
        Attributes to one score, as the source counts.
    """

    table: str
    components: int
    mse: float | None = None
    ssim: float | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class PublishedTime:
    """Seconds for each cell, Intel Core i7-6700HQ (2.6 GHz) and GeForce GTX 960M, MATLAB.

    Attributes
    ----------
    table : str
        Its number.
    cpu, gpu : float or None
    """

    table: str
    cpu: float | None = None
    gpu: float | None = None


_RANDOM, _MEAN, _BOTH = "bands at random", "bands by mean", "bands by mean and variance"

#: Data set to (name of the strategy, its setting) to numbers; "all" is the estimating subset of all samples.
QUALITY: dict[str, dict[str, PublishedQuality]] = {
    "none": {},
    "lfw": {
        "cells 5 x 5": PublishedQuality("4.2", 5, 0.0009, 0.8859, 15.0),
        "cells 10 x 10": PublishedQuality("4.2", 20, 0.0004, 0.927, 15.0),
        "cells 25 x 25": PublishedQuality("4.2", 125, 0.00027, 0.9425, 15.0),
        "holistic": PublishedQuality("4.2", 1000, 0.0029, 0.71, 13.2),
        _RANDOM: PublishedQuality("4.4", 125, 0.0091, 0.43, 12.5),
        f"{_MEAN}, from 100": PublishedQuality("4.4", 125, 0.0028, 0.72, 12.6),
        f"{_MEAN}, from 1,000": PublishedQuality("4.4", 125, 0.0017, 0.79, 12.6),
        f"{_MEAN}, from all": PublishedQuality("4.4", 125, 0.0015, 0.815, 12.8),
        f"{_BOTH}, from 100": PublishedQuality("4.4", 125, 0.0016, 0.79, 12.7),
        f"{_BOTH}, from 1,000": PublishedQuality("4.4", 125, 0.0009, 0.86, 12.6),
        f"{_BOTH}, from all": PublishedQuality("4.4", 125, 0.00074, 0.875, 12.6),
    },
    "celeba": {
        "cells 5 x 5": PublishedQuality("4.2", 5, 0.0014, 0.8375, 15.0),
        "cells 10 x 10": PublishedQuality("4.2", 20, 0.0009, 0.8768, 15.0),
        "cells 25 x 25": PublishedQuality("4.2", 125, 0.0007, 0.89, 15.0),
        "holistic": PublishedQuality("4.2", 1000, 0.003, 0.72),
    },
}

#: The same of table 4.1, which prints the MSE of two of them with more digits.
FIRST_EXAMPLE: dict[str, dict[str, PublishedQuality]] = {
    "none": {},
    "lfw": {
        "cells 10 x 10": PublishedQuality("4.1", 20, 0.00041),
        "holistic": PublishedQuality("4.1", 1000, 0.0029),
    },
    "celeba": {
        "cells 10 x 10": PublishedQuality("4.1", 20, 0.0009),
        "holistic": PublishedQuality("4.1", 1000, 0.003),
    },
}

#: Data set to strategy to seconds; that of whole samples is printed as "hours".
SECONDS: dict[str, dict[str, PublishedTime]] = {
    "none": {},
    "lfw": {
        "cells 5 x 5": PublishedTime("4.3", 0.0427, 0.3273),
        "cells 10 x 10": PublishedTime("4.3", 0.16, 0.295),
        "cells 25 x 25": PublishedTime("4.3", 7.87, 3.19),
    },
    "celeba": {
        "cells 5 x 5": PublishedTime("4.3", 0.44, 0.9),
        "cells 10 x 10": PublishedTime("4.3", 1.92, 1.2845),
        "cells 25 x 25": PublishedTime("4.3", 63.3, 4.39),
    },
}
