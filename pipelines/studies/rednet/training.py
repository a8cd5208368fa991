"""RedNet trained on the splits as in section 5.6.2 of the thesis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.rednet.inputs import Inputs, signs
from dpca.pipelines.studies.rednet.splits import Task, split
from dpca.pipelines.studies.rednet.trials import TrialResult, accuracy, descend

#: Section 5.6.2.
BATCH, RATE, MOMENTUM, DECAY, HALVED_EVERY = 128, 0.008, 0.9, 1e-4, 100


@dataclass(frozen=True)
class TableRow:
    """A row of the table.

    Parameters
    ----------
    values : callable
        From `Inputs` to the values (n, 25, 25, channels).
    epochs : int
    normalization : str
        As in `dpca.torch.RedNet`.
    """

    values: Callable[[Inputs], Array]
    epochs: int = 200
    normalization: str = "cross-channel"


def _own(inputs: Inputs) -> Array:
    return inputs.arrays["own"][..., :3].astype(np.float32)


NETWORKS: dict[str, TableRow] = {
    "RedNet, own k = 3": TableRow(_own),
    "RedNet, shared k = 3": TableRow(lambda inputs: inputs.arrays["shared"]),
    "RedNet, own k = 3, random signs": TableRow(lambda inputs: _own(inputs) * signs(_own(inputs).shape[1:])),
    "RedNet, gray": TableRow(lambda inputs: inputs.arrays["gray"]),
    "RedNet, color": TableRow(lambda inputs: inputs.arrays["color"]),
    "RedNet, batch normalization": TableRow(_own, epochs=400, normalization="batch"),
}


def train(
    network: TableRow, values: Array, person: Array, task: Task, trial: int, device: str, epochs: int | None = None
) -> TrialResult:
    """Train a new network on the photographs of a trial.

    As in section 5.6.2: inputs minus the mean of the training photographs, stochastic gradient descent, no
    augmentation. As in the MATLAB of the thesis, samples are shuffled before each epoch, those of an incomplete last
    batch are not used in it, and weights decay but biases do not. Convolutions may round to TF32.

    Parameters
    ----------
    network : TableRow
    values : array (n, side, side, channels)
        Values of all photographs.
    person, task, trial
        As for `split`.
    device : str
    epochs : int, optional
        Default: that of the network.
    """
    import torch

    from dpca.torch import RedNet

    drawn = split(person, task, trial)
    torch.manual_seed(trial)
    torch.set_float32_matmul_precision("high")

    def on_device(rows: Array) -> Any:
        some = values[rows].astype(np.float32) - values[drawn.learned].astype(np.float32).mean(axis=0)
        return torch.from_numpy(np.ascontiguousarray(some.transpose(0, 3, 1, 2))).to(device)

    x, tested = on_device(drawn.learned), on_device(drawn.tested)
    y = torch.from_numpy(drawn.labels[0]).to(device)
    model = RedNet(x.shape[1], int(y.max()) + 1, normalization=network.normalization, side=x.shape[2]).to(device)
    weights = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights, "weight_decay": DECAY}, {"params": others}]
    optimizer = torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, HALVED_EVERY, 0.5)
    losses = descend(model, optimizer, scheduler, x, y, epochs=epochs or network.epochs, batch=BATCH, seed=trial)
    return TrialResult(accuracy(model, tested, drawn.labels[1]), losses)


def courses(
    inputs: Inputs, task: Task, device: str, *, networks: dict[str, TableRow] = NETWORKS, epochs: int | None = None
) -> dict[str, Callable[[int], TrialResult]]:
    """Return functions that train each network in a trial; see `dpca.pipelines.studies.rednet.trials.run`."""

    def course(network: TableRow) -> Callable[[int], TrialResult]:
        values = network.values(inputs)
        return lambda trial: train(network, values, inputs.person, task, trial, device, epochs)

    return {name: course(network) for name, network in networks.items()}
