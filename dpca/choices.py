"""Names of choices. This module imports nothing, because a command line is parsed before any library is imported."""

#: Ways to assign attributes to bands.
MAPPINGS = ("mean-variance", "mean", "random", "raster")
#: Kernels, by scikit-learn's names; "precomputed" expects rows of a kernel matrix instead of samples.
KERNELS = ("rbf", "poly", "linear", "cosine", "precomputed")
#: Instead of a number of components: those above the noise floor (assumes the same noise everywhere).
NOISE = "marchenko-pastur"
#: Noise of a denoiser: of one level or a map, of counted photons, or of magnitudes of complex values.
GAUSSIAN, POISSON, RICIAN = "gaussian", "poisson", "rician"
#: What happens to singular values above the noise: the least squared error, a threshold, or nothing.
OPTIMAL, HARD, PLAIN = "optimal", "hard", "none"
#: Instead of a number that marks missing values: infinities.
INFINITE = "infinite"
#: The kind of a compressed store, as its metadata states it.
COMPRESSED = "compressed"
#: Goals of a compressed store; each store has exactly one, see `dpca.codec.goal.Goal`.
GOALS = ("ratio", "psnr", "mse", "ssim", "max_error", "max_relative_error", "noise_share")
#: The goals that are means over whole samples.
MEAN_GOALS = ("psnr", "mse", "ssim", "noise_share")
#: The goal that bounds the error by the noise.
NOISE_SHARE = "noise_share"
#: Qualities of a compressed store by words: the PSNR of the mean error in decibels.
QUALITIES = {"low": 32.0, "medium": 36.0, "high": 40.0}
#: Formats of exported samples, see `dpca.jobs.export.formats`.
EXPORT_FORMATS = ("jpeg", "png", "tiff", "npy", "nifti", "netcdf", "ome-zarr")
