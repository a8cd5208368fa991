"""Names that people choose from; without imports, since a command line is parsed before any library is imported."""

#: Ways to put attributes into bands.
MAPPINGS = ("mean-variance", "mean", "random", "raster")
#: Kernels, by scikit-learn's names; "precomputed" takes rows of a kernel matrix in the place of samples.
KERNELS = ("rbf", "poly", "linear", "cosine", "precomputed")
#: In the place of a number of components: those whose variance noise of one level does not explain.
NOISE = "marchenko-pastur"
#: The kind that a compressed store states of itself.
COMPRESSED = "compressed"
#: What a compressed store may be asked to reach; exactly one of these, see `dpca.codec.goal.Goal`.
GOALS = ("ratio", "psnr", "mse", "ssim", "max_error", "max_relative_error")
