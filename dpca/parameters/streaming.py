"""Parameters of `StreamingPCA` and `TrajectoryPCA`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from dpca.parameters import common
from dpca.parameters.declaration import REQUIRED, Option, always_stored, never_stored, parameter
from dpca.parameters.kinds import FLAG, array, choice, instance, number, whole

#: Each method's module and class in `dpca.rules`. Stores contain these names only.
RULE_CLASSES: dict[str, str] = {
    "incremental-svd": "incremental.incremental_svd.IncrementalSVD",
    "covariance": "covariance.streaming_covariance.StreamingCovariance",
    "oja": "stochastic.oja.Oja",
    "oja-subspace": "stochastic.oja.OjaSubspace",
    "krasulina": "stochastic.oja.Krasulina",
    "sanger": "stochastic.oja.Sanger",
    "implicit-krasulina": "stochastic.implicit_krasulina.ImplicitKrasulina",
    "block-power": "stochastic.block_power.BlockPower",
    "accelerated-block-power": "stochastic.accelerated.AcceleratedBlockPower",
    "accelerated-oja": "stochastic.accelerated.AcceleratedOja",
    "ccipca": "incremental.ccipca.CCIPCA",
    "ipca": "incremental.ipca.IPCA",
    "similarity-matching": "stochastic.similarity_matching.SimilarityMatching",
}
#: The method is selected by the number of attributes.
AUTO = "auto"
# The methods that fold segments in parallel, and the sequential ones, quoted for the documentation.
_MERGING = ("covariance", "incremental-svd")
_SEQUENTIAL = ", ".join(f'"{name}"' for name in RULE_CLASSES if name not in _MERGING)


@dataclass(eq=False, repr=False)
class StreamParameters:
    """Parameters of `StreamingPCA` and `TrajectoryPCA`."""

    n_components: Any = never_stored(
        REQUIRED,
        whole(1) | number(above=0, below=1),
        "Components to find. A number between 0 and 1 keeps the fewest components that explain more than this share of "
        'the variance, and requires the method "covariance".',
        option=Option("--components", "K", kind=whole(1)),
    )
    _: KW_ONLY
    method: Any = always_stored(
        AUTO,
        choice(AUTO, *RULE_CLASSES) | instance("StreamingRule", "a rule of dpca.rules", "rule"),
        "The update rule of components of whole samples, for example incremental-svd, close to exact after one pass "
        "over samples in any order. It is a name, or an object of `dpca.rules` with its own options, such as "
        "``Oja(schedule=Harmonic(1.0))``. The estimator sets the ``n_components``, ``center`` and ``seed`` of that "
        'object. "auto" selects "covariance" for samples of few attributes and '
        '"incremental-svd" for others, see `dpca.models.streaming.streaming_methods.default_method`. "covariance" is '
        'exact; "incremental-svd" is that of Brand 2002 and Ross et al. 2008. These two support merging: segments are '
        f"folded in parallel. The others are sequential rules, described in `dpca.rules`: {_SEQUENTIAL}. They assume "
        "samples in random order. By default they run as a chain, one segment after the other, see ``execution``.",
        option=Option("--method", "NAME", kind=choice(*RULE_CLASSES)),
        shown="str or rule",
    )
    batch_size: int | None = always_stored(
        None,
        whole(1),
        "Samples of one update, independent of the chunks of the store; the default depends on the rule. It is 4,096 "
        'for "covariance", 1,024 for "incremental-svd" and 100 for most others, but at most 256 MiB in float32.',
        option=Option("--batch", "N"),
    )
    n_passes: int = always_stored(
        1,
        whole(1),
        "Passes over the data; each after the first refines the components and measures the variance that they "
        "explain. It multiplies the components by the covariance (orthogonal iteration with Rayleigh-Ritz, Alakkari "
        "2020, section 3.4.5; Arora 2015, section 5.3) and measures exactly the variance that they capture. The passes "
        'of "incremental-svd" multiply all its directions. If the spectrum has a gap, ``captured_bound_`` then differs '
        "from 1 by little more than rounding (MNIST, k = 20, random order: 5e-5; .10 after one pass).",
        option=Option("--passes", "N"),
    )
    center: bool = always_stored(
        True,
        FLAG,
        "Whether to subtract the mean. Rules with a merge subtract the exact mean in one pass, others the running "
        "mean.",
    )
    shuffle: bool = always_stored(
        False,
        FLAG,
        "Read the samples in a random order in the first pass, which rules without a merge require if samples are "
        "sorted. Whole chunks are read in a random order, with the samples of several chunks mixed.",
        option=Option("--shuffle", const=True),
    )
    execution: str = always_stored(
        "auto",
        choice("auto", "chain", "averaged", "data-parallel"),
        'How samples are distributed to workers. "auto": parallel segments, merged as a tree, if the rule has a merge, '
        'and a chain otherwise. "chain": one stream, for every rule. "averaged": ``n_streams`` streams of samples, '
        "averaged after every ``round_size`` samples of each (Amid & Warmuth 2020, equation 18), for rules of "
        '`dpca.rules` that are ``averageable``; the average is best justified for "implicit-krasulina". '
        '"data-parallel": the batch of one update distributed to workers, for rules that are ``summable``; use a large '
        "``batch_size`` (default 1,000). `partial_fit` is always a chain.",
        shown="str",
    )
    n_streams: int | None = always_stored(
        None,
        whole(1),
        'For "averaged": number of streams, default 10. The result depends on it, but not on the number of workers. '
        'For "data-parallel": parts of a batch, by default as many as can run at once. The result depends on it by '
        "rounding only.",
    )
    round_size: int | None = always_stored(
        None, whole(1), "Samples of each stream between two averages: whole batches, default 1,000 samples."
    )
    random_state: Any = common.random_state(
        "Seed of the random start, of random schedules and of the order. A fit with checkpoints requires an int."
    )
    memory_budget: int | None = common.memory_budget()
    oversampling: int | None = always_stored(
        None,
        whole(0),
        'Extra directions that "incremental-svd" keeps, default 60, or a fifth of the components if that is more. If '
        'given, "auto" selects that rule.',
        option=Option("--oversampling", "N"),
    )
    forgetting: float | None = always_stored(
        None,
        number(above=0, most=1),
        'Weight of a sample relative to the next one in "incremental-svd", default 1. If it is given, "auto" selects '
        "that rule.",
    )
    whiten: bool = common.whiten()
    keep_state: bool = common.keep_state(" Requires ``n_passes`` = 1.")
    track_scores: bool = parameter(
        False,
        FLAG,
        "Whether `partial_fit` keeps the scores of all samples so far in `tracked_scores_`. It rotates them with the "
        'components, and reads no sample twice. Requires "incremental-svd", which "auto" then selects.',
    )


@dataclass(eq=False, repr=False, kw_only=True)
class StreamingParameters(StreamParameters):
    """Parameters of `StreamingPCA`."""

    weights: Any = common.weights(common.OF_VARIABLES)
    standardize: bool | str = common.standardize()
    gaps: str = common.gaps(
        "in one pass: each batch is one step of expectation-maximization, see `dpca.rules.gaps.online`.",
        'Requires an integer ``n_components``, ``center``, one pass and the method "auto", and neither ``whiten`` nor '
        "options of methods.",
    )
    missing_value: Any = common.missing_value()


@dataclass(eq=False, repr=False, kw_only=True)
class TrajectoryParameters(StreamParameters):
    """Parameters of `TrajectoryPCA`. Its stores contain arrays instead of the first three."""

    reference: Any = never_stored(
        "mean",
        choice("mean", "first") | array("positions (n_atoms, 3)", "array (n_atoms, 3)"),
        'The structure that frames are superposed on. "mean": the mean of the superposed frames, found by passes that '
        'start with the first frame and end when the mean has converged. "first": the first frame, as in MDAnalysis. '
        "An array: these positions. The reference is centered.",
    )
    weights: Any = never_stored(
        None,
        choice("mass") | array("one number for each atom", "array (n_atoms,)"),
        'Positive weight of each atom: its coordinates are multiplied by the root of the weight. "mass" gives the '
        "mass-weighted covariance of quasi-harmonic analysis, and requires an ``AtomGroup`` or a stack made from one.",
    )
    fit_weights: Any = never_stored(
        None,
        choice("mass") | array("one number for each atom", "array (n_atoms,)"),
        "Weight, at least 0, of each atom's squared distance in the superposition. Atoms of weight 0 do not affect the "
        "superposition, but are analyzed. Default ``weights``.",
    )
    reference_passes: int = always_stored(20, whole(1), 'Largest number of passes to find the reference "mean".')
