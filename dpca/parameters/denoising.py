"""Parameters of `Denoiser`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from dpca.choices import GAUSSIAN, HARD, OPTIMAL, PLAIN, POISSON, RICIAN
from dpca.parameters import common
from dpca.parameters.declaration import Option, parameter
from dpca.parameters.kinds import FLAG, LENGTHS, TEXT, array, choice, number


@dataclass(eq=False, repr=False)
class DenoisingParameters:
    """Parameters of `Denoiser`."""

    cell_shape: int | tuple[int, ...] | None = parameter(
        None,
        LENGTHS,
        "Cell length in pixels along each spatial axis; an integer applies to all of them. Axes are divided as equally "
        "as possible. The default has about as many pixels as there are samples, within 4 to 6 along each axis of "
        "volumes, and 8 to 16 along those of images.",
        option=Option("--cell", "N[xM[xL]]"),
    )
    _: KW_ONLY
    noise: str = parameter(
        GAUSSIAN,
        choice(GAUSSIAN, POISSON, RICIAN),
        'Noise of the values: "gaussian", "poisson" with the variance gain * (mean - offset) + read_noise**2, or '
        '"rician", that of magnitudes of complex values, such as those of MRI. Results of "rician" are the magnitudes '
        "without noise: their bias is removed, too (Koay & Basser 2006).",
        option=Option("--noise"),
    )
    sigma: Any = parameter(
        None,
        number(above=0) | array("an array of the shape of a sample"),
        "Standard deviation of Gaussian noise, one number or a map of the shape of a sample; that of the real and of "
        "the imaginary part if noise is Rician. The default is estimated in each cell (Veraart et al. 2016).",
        shown="float or array, optional",
        option=Option(
            "--sigma",
            "S",
            "standard deviation of Gaussian or Rician noise: a number, or the path of a map with the shape of a sample "
            "(Zarr, .npy, NIfTI, ...) (default: estimated in each cell)",
            kind=number(above=0) | TEXT,
        ),
    )
    gain: float | None = parameter(
        None,
        number(above=0),
        "Value of one photon, for Poisson noise. The default is estimated in each cell.",
        option=Option("--gain", "G", "value of one photon, for Poisson noise (default: estimated in each cell)"),
    )
    offset: float | None = parameter(
        None,
        number(),
        "Value of no photon, for Poisson noise. The default is estimated from the noise of cells of different "
        "brightness, in one more pass over at most 512 samples; 0 if that is compatible with them. Without a gain, the "
        "estimate contains the read noise, which mean and variance cannot tell from the offset.",
        option=Option(
            "--offset", "V", "value of no photon, for Poisson noise (default: estimated from the noise of cells)"
        ),
    )
    read_noise: float = parameter(
        0.0,
        number(least=0),
        "Standard deviation of the noise of a camera that does not depend on light, for Poisson noise with a gain.",
        option=Option("--read-noise", "S"),
    )
    shrinkage: str = parameter(
        OPTIMAL,
        choice(OPTIMAL, HARD, PLAIN),
        'What happens to singular values above the noise: "optimal" shrinks them for the least squared error (Gavish & '
        'Donoho 2017), "hard" keeps those above the optimal threshold (Gavish & Donoho 2014), and "none" keeps all.',
        option=Option("--shrinkage"),
    )
    shifted: bool = parameter(
        True,
        FLAG,
        "Average over grids that are shifted by half a cell along some of the axes. Otherwise there is one grid, which "
        "is up to four times faster and leaves visible borders.",
        option=Option(
            "--one-grid", help="use one grid of cells instead of shifted ones (default: shifted)", const=False
        ),
    )
    time_filter: bool = parameter(
        False,
        FLAG,
        "Whether samples are a series in time at equal intervals, such as the frames of a movie. The scores of "
        "components are then filtered along it, with the least squared error for their autocovariance around each 64 "
        "samples (Wiener 1949).",
        option=Option(
            "--time-filter",
            help="filter in time, too: samples are a series at equal intervals, such as a movie (default: no filter)",
            const=True,
        ),
    )
    keep_dtype: bool = parameter(
        False,
        FLAG,
        "Round and clip the results to the type of the samples. By default they are float32, or float64 for float64 "
        "and integers of over 16 bits.",
        option=Option("--keep-dtype", const=True),
    )
    memory_budget: int | None = common.memory_budget()
