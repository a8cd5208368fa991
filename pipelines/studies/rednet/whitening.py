"""Whitened patch components as an untrained first convolution: an ablation on the CIFAR-10 subset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpca import PatchPCA
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.rednet.trials import TrialResult, accuracy, descend

#: Length of patches, and the constant added to variances of standardized values, as in airbench (Jordan 2024).
PATCH, WHITEN = 2, 5e-4
SEEDS = 5
LEARNED, EPOCHS, BATCH, RATE, MOMENTUM, DECAY = 4000, 8, 128, 0.05, 0.9, 5e-4
#: Channels of the convolutions after the first one.
WIDTHS = (32, 64, 128)

#: The first convolution, always of one shape: whether it is trained, and its initial patch components.
FIRST: dict[str, tuple[bool, dict[str, Any] | None]] = {
    "trained": (True, None),
    "whitened, frozen": (False, {"whiten": WHITEN, "signs": True}),
    "whitened, trained": (True, {"whiten": WHITEN, "signs": True}),
    "not whitened, frozen": (False, {"signs": True}),
    "random, frozen": (False, None),
}


def courses(images: Array, labels: Array, device: str, epochs: int = EPOCHS) -> dict[str, Callable[[int], TrialResult]]:
    """Return functions that train a small network with each first convolution. The trial is split and seed.

    Parameters
    ----------
    images : array (n, height, width, channels)
    labels : array (n,) of int
    device : str
        Name in torch.
    """
    return {name: partial(_train, name, images, labels, device, epochs) for name in FIRST}


def _train(name: str, images: Array, labels: Array, device: str, epochs: int, trial: int) -> TrialResult:
    import torch
    from torch import nn

    order = np.random.default_rng(trial).permutation(len(images))
    learned, tested = order[:LEARNED], order[LEARNED:]
    known = images[learned].astype(np.float32)
    values = (images - known.mean(axis=(0, 1, 2))) / known.std(axis=(0, 1, 2))
    patches = PatchPCA(patch_shape=PATCH).fit(values[learned])
    # The same weights after every first convolution.
    torch.manual_seed(trial)
    trained, filters = FIRST[name]
    first = nn.Conv2d(images.shape[-1], 2 * patches.n_components_, PATCH)
    body = _body(first.out_channels, int(labels.max()) + 1)
    if filters is not None:
        first.weight.data = torch.from_numpy(patches.filters(**filters))
        first.bias.data = torch.from_numpy(patches.filter_biases(**filters))
    model = nn.Sequential(first.requires_grad_(trained), nn.ReLU(), *body).to(device)
    weights = (p for p in model.parameters() if p.requires_grad)
    optimizer = torch.optim.SGD(weights, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 1 / epochs, epochs)
    x, z = (
        torch.from_numpy(np.ascontiguousarray(values[rows].transpose(0, 3, 1, 2))).to(device)
        for rows in (learned, tested)
    )
    y = torch.from_numpy(labels[learned].astype(np.int64)).to(device)
    losses = descend(model, optimizer, scheduler, x, y, epochs=epochs, batch=BATCH, seed=trial)
    return TrialResult(accuracy(model, z, labels[tested]), losses)


def _body(channels: int, classes: int) -> Any:
    from torch import nn

    layers: list[Any] = []
    for width in WIDTHS:
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.MaxPool2d(2)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return [*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
