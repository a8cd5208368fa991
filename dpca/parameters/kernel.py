"""Parameters of `KernelPCA` and `SpectralClustering`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from dpca.choices import KERNELS
from dpca.parameters import common
from dpca.parameters.declaration import REQUIRED, Option, always_stored, never_stored, parameter, same_as
from dpca.parameters.kinds import TEXT, array, choice, instance, number, whole


@dataclass(eq=False, repr=False)
class KernelParameters:
    """Parameters of `KernelPCA`."""

    n_components: int = always_stored(REQUIRED, whole(1), "Number of components.", option=Option("--components", "K"))
    _: KW_ONLY
    kernel: str = always_stored(
        "rbf",
        choice(*KERNELS),
        'As in scikit-learn. With "precomputed", samples are rows of a kernel matrix; this requires method "exact".',
        option=Option(
            "--kernel",
            help="use components in the feature space of this kernel",
            kind=choice(*KERNELS[:-1]),
            exclusive=True,
        ),
    )
    gamma: float | None = always_stored(
        None,
        number(above=0),
        'Parameter of "rbf", ``exp(-gamma |x - z|^2)``, and of "poly"; default 1 / (2 s^2), where s is the root mean '
        "square distance between the samples that landmarks are chosen from. (The default of scikit-learn is "
        "1 / n_features.)",
        option=Option("--gamma", "G"),
    )
    degree: int = always_stored(3, whole(1), 'Of "poly": (gamma x.z + coef0)^degree.')
    coef0: float = always_stored(1.0, number(least=0), 'Of "poly", see ``degree``.')
    method: str = always_stored(
        "nystrom",
        TEXT,
        '- "nystrom": one pass, after up to 16,384 samples are read for the choice of landmarks. Memory does not grow '
        "with the number of samples.\n"
        '- "exact": all samples are landmarks. Takes 12 matrices of n x n in float64 and O(n^3) time. If that does not '
        "fit into a task, the kernels follow from inner products, in one pass over blocks of attributes, and 4 "
        "matrices suffice; products of more than 128 samples are then float32 unless the samples are float64.\n"
        '- "kha": the kernel Hebbian algorithm (Günter, Schraudolph & Vishwanathan 2007) in the span of the landmarks, '
        'for comparisons: one pass of "nystrom", then passes of steps in random order that approximate its result. '
        "Takes 8 (n_components + 2) bytes more for each sample.",
    )
    n_landmarks: int | None = always_stored(
        None,
        whole(1),
        "Number of landmarks; default 500, or 10 for each component if that is more, and at most the number of "
        "samples. Fewer are used if these already span all others.",
        option=Option("--landmarks", "N"),
    )
    landmarks: Any = never_stored(
        "cholesky",
        choice("cholesky", "uniform", "k-means") | array("an array of numbers", "array (n_landmarks, *sample_shape)"),
        'Choice of the landmarks. "cholesky": randomly pivoted Cholesky (Chen, Epperly, Tropp & Webber 2022), which '
        'finds small groups of samples far from all others. "uniform": all samples with the same probability. '
        '"k-means": centers of mini-batch k-means (Zhang & Kwok 2008), which capture most for their number. Or the '
        "landmarks.",
    )
    pre_image: str = always_stored(
        "ridge",
        choice("ridge", "fixed-point"),
        'Estimate of samples in `inverse_transform`. "ridge": kernel ridge regression of the landmarks on their '
        'scores, as scikit-learn with all samples (Bakir, Weston & Schölkopf 2003). "fixed-point": the fixed-point '
        'iteration of Mika et al. 1999, started from "ridge"; only for "rbf".',
    )
    alpha: float = always_stored(1.0, number(above=0), "Penalty of the ridge regression, positive.")
    inverse_gamma: float | None = always_stored(
        None,
        number(above=0),
        "Parameter of the kernel of scores in the ridge regression. Default: as for ``gamma``, from the scores of the "
        "landmarks, with the weights of the samples if these are the landmarks. (scikit-learn uses ``gamma`` itself.)",
    )
    gains: Any = always_stored(
        None,
        instance("Gains", "gains of dpca.rules.gains_of", "Gains"),
        'Gains of "kha"; see `dpca.rules.gains_of`. Default: KHA/et*, which decays to a twentieth over a pass, from '
        "the largest gain that does not diverge in the first 1,280 steps (`dpca.rules.tune`).",
    )
    n_passes: int = always_stored(1, whole(1), 'Number of passes of "kha" over the data, all in the same random order.')
    random_state: Any = common.random_state(
        'Seed of the choice of landmarks, and of the order and the initial state of "kha".'
    )
    memory_budget: int | None = common.memory_budget()


@dataclass(eq=False, repr=False)
class ClusteringParameters:
    """Parameters of `SpectralClustering`, which has no stores."""

    n_clusters: int = parameter(8, whole(1), "Number of clusters.")
    _: KW_ONLY
    gamma: float | None = same_as(KernelParameters, "gamma")
    n_landmarks: int | None = same_as(KernelParameters, "n_landmarks")
    landmarks: Any = same_as(KernelParameters, "landmarks")
    n_init: int = parameter(10, whole(1), "Number of starts of k-means; the best result is used.")
    random_state: Any = common.random_state("Seed of the choice of landmarks, and of k-means.")
    memory_budget: int | None = common.memory_budget()
