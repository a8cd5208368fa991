"""The cascade of patches and its ablations, on few training images of MNIST and CIFAR-10."""

from __future__ import annotations

from typing import Any

from dpca import PatchCascade, StreamingRidgeClassifier
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.data import Setting
from dpca.report.page import DataTable

ABLATIONS: dict[str, dict[str, Any]] = {
    "cascade": {},
    "not whitened": {"whitening": None},
    "random filters": {"filters": "random", "random_state": 0},
    "without rectification": {"rectify": False},
}
#: Components of the two layers, training images, and test images at most.
_SETTINGS = {"MNIST": ((8, 64), 4000, 2000), "CIFAR-10": ((16, 64), 4000, 2000)}


def cascade_table(setting: Setting) -> tuple[DataTable, dict[str, Any]]:
    """Return the accuracy of ridge regression on the features of each variant and on the pixels."""
    found: dict[str, dict[str, float]] = {}
    heads = []
    for data, (counts, learned, tested) in _SETTINGS.items():
        images, labels, others, wanted = _images(setting, data)
        x, y, z = images[:learned], labels[:learned], others[:tested]
        heads.append(f"{data}, {len(x):,} / {len(z):,}")
        for name, options in ABLATIONS.items():
            model = PatchCascade(counts, flatten=True, **options).fit(x)
            found.setdefault(name, {})[data] = _accuracy(model.transform(x), y, model.transform(z), wanted[:tested])
        found.setdefault("pixels", {})[data] = _accuracy(x, y, z, wanted[:tested])
    rows = [(name, *(f"{value:.2f}" for value in values.values())) for name, values in found.items()]
    notes = (
        f"Accuracy in % of ridge regression on the test images; K-fold cross-validation of the training images chose "
        f"the penalty of each row. Two layers of 5 x 5 patches: {_SETTINGS['MNIST'][0]} and "
        f"{_SETTINGS['CIFAR-10'][0]} components.",
    )
    return DataTable("A cascade without gradients", ("", *heads), rows, notes), {"cascade": found}


def _accuracy(x: Array, y: Array, z: Array, wanted: Array) -> float:
    return 100 * float(StreamingRidgeClassifier().fit(x, y).score(z, wanted))


def _images(setting: Setting, data: str) -> tuple[Array, Array, Array, Array]:
    if data == "MNIST":
        (x, y), (z, wanted) = setting.digits("train"), setting.digits("t10k")
        return x.reshape(-1, 28, 28), y, z.reshape(-1, 28, 28), wanted
    images, labels = setting.cifar()
    return images[:4000], labels[:4000], images[4000:], labels[4000:]
