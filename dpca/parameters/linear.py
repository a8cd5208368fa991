"""Parameters of `PCA`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from dpca.parameters import common
from dpca.parameters.declaration import REQUIRED, Option, always_stored
from dpca.parameters.kinds import FLAG, TEXT, choice, number, whole


@dataclass(eq=False, repr=False)
class PCAParameters:
    """Parameters of `PCA`."""

    n_components: Any = always_stored(
        REQUIRED,
        whole(1) | number(above=0, below=1),
        "Components to find. None keeps all min(n_samples, n_features) components. A number between 0 and 1 keeps the "
        "fewest components that explain more than this share of the variance. Both require the solver "
        '"covariance" or "dual".',
        none=True,
        shown="int, float or None",
        option=Option("--components", "K", kind=whole(1) | choice("all")),
    )
    _: KW_ONLY
    solver: str = always_stored(
        "auto",
        TEXT,
        '- "covariance": eigendecomposition of the covariance (Alakkari 2020, section 2.1). One pass, n d^2 '
        "operations, 8 d^2 bytes. Exact.\n"
        '- "dual": eigendecomposition of the Gram matrix of the samples (Arora 2015, section 6.1). n^2 d operations, '
        "8 n^2 bytes. All samples of one block of attributes must fit into memory: it reads the data once for each "
        "block, and once more. Exact.\n"
        '- "randomized": range finder with ``n_iter`` power iterations, then Rayleigh-Ritz (Halko, Martinsson & Tropp '
        "2011). ``n_iter`` + 2 passes of 4 n d q operations, q = n_components + oversampling, 8 d q bytes.\n"
        '- "orthogonal-iteration": from a random basis (Arora 2015, section 5.3) until ``tol`` is met, in at most '
        "``n_iter`` passes of the same cost.\n"
        '- "power": power iteration with deflation (Arora 2015, section 5.2) until ``tol`` is met, in at most '
        "``n_iter`` passes for each component, and one more.\n"
        '- "vr-pca": variance-reduced stochastic gradients (Alakkari 2020, algorithm 2.1; in blocks, Shamir 2016) '
        "until ``tol`` is met, in at most ``n_iter`` epochs of two passes. Reads mini-batches in the order of the "
        "store.\n"
        '- "auto": chosen by shape and memory, see `dpca.models.linear.pca_solvers.choose_solver`.',
    )
    n_least: int = always_stored(
        0, whole(0), 'Number of components of the smallest variances to find as well. Requires "covariance".'
    )
    center: bool = always_stored(True, FLAG, "Whether to subtract the mean.")
    n_iter: int | None = always_stored(
        None, whole(0), 'See ``solver``; default 4 for "randomized", 50 for "vr-pca", 100 for the others.'
    )
    oversampling: int | None = always_stored(
        None, whole(0), 'Extra directions of "randomized" and "orthogonal-iteration"; default 10.'
    )
    tol: float | None = always_stored(
        None,
        number(above=0),
        "Tolerated error of the captured variance, as a share of it; a larger error gives a warning. Requires a solver "
        'that iterates. Default 1e-4, and 1e-2 for "randomized", which makes a fixed number of passes. The error is '
        "measured in the last pass, from the singular values of the residuals (Kahan 1967). It bounds the difference "
        "between the captured variance and the sum of as many eigenvalues. On 10,000 images of MNIST with 50 "
        "components, the true loss was a sixth to a hundredth of it.",
    )
    random_state: Any = common.random_state("Seed of the random start of the iterations.")
    memory_budget: int | None = common.memory_budget()
    whiten: bool = common.whiten()
    weights: Any = common.weights(common.OF_VARIABLES)
    standardize: bool | str = common.standardize()
    gaps: str = common.gaps(
        common.SEVERAL_PASSES,
        "Requires an integer ``n_components``, ``center``, and neither ``n_least`` nor ``whiten``.",
    )
    missing_value: Any = common.missing_value()
