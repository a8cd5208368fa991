"""RedNet trained on the splits, wherever torch finds a device; each trial is on disk when it ends."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpca.engine.device import find_device
from dpca.kernels.types import Array
from dpca.pipelines.studies.rednet.inputs import Inputs, signs
from dpca.pipelines.studies.rednet.splits import Task, split
from dpca.storage.disk import atomic_write_bytes

#: Section 5.6.2.
BATCH, RATE, MOMENTUM, DECAY, HALVED_EVERY = 128, 0.008, 0.9, 1e-4, 100


@dataclass(frozen=True)
class Network:
    """A row of the table.

    Parameters
    ----------
    values : callable
        What is taken of the inputs (n, 25, 25, channels).
    epochs : int
    normalization : str
        Of `dpca.torch.RedNet`.
    """

    values: Callable[[Inputs], Array]
    epochs: int = 200
    normalization: str = "cross-channel"


def _own(inputs: Inputs) -> Array:
    return inputs.arrays["own"][..., :3].astype(np.float32)


NETWORKS: dict[str, Network] = {
    "RedNet, own k = 3": Network(_own),
    "RedNet, shared k = 3": Network(lambda inputs: inputs.arrays["shared"]),
    "RedNet, own k = 3, random signs": Network(lambda inputs: _own(inputs) * signs(_own(inputs).shape[1:])),
    "RedNet, grey": Network(lambda inputs: inputs.arrays["grey"]),
    "RedNet, color": Network(lambda inputs: inputs.arrays["color"]),
    "RedNet, batch normalization": Network(_own, epochs=400, normalization="batch"),
}


class Course(NamedTuple):
    """What a trial came to."""

    accuracy: float
    """On the test set, in %."""
    losses: Sequence[float]
    """Mean loss of each epoch."""
    seconds: float


def accelerator() -> str | None:
    """Return what torch calls the GPU of this machine; None without one, or without torch."""
    found = find_device()
    return found.name if found is not None and found.library == "torch" else None


def train(
    network: Network, values: Array, person: Array, task: Task, trial: int, device: str, epochs: int | None = None
) -> Course:
    """Train a network anew on the photographs of a trial.

    As section 5.6.2 has it: inputs less the mean of the training photographs, stochastic gradient descent, no
    augmentation. As in the source's MATLAB, samples are shuffled before each epoch, those that do not fill a batch sit
    it out, and weights decay but biases do not. Convolutions may round to TF32.

    Parameters
    ----------
    network : Network
    values : array (n, side, side, channels)
        Of all photographs.
    person, task, trial
        As for `split`.
    device : str
    epochs : int, optional
        Default: those of the network.
    """
    import torch
    import torch.nn.functional as F

    from dpca.torch import RedNet

    began, drawn = time.perf_counter(), split(person, task, trial)
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
    order, batch, losses = np.random.default_rng(trial), min(BATCH, len(x)), []
    for _ in range(epochs or network.epochs):
        rows = torch.from_numpy(order.permutation(len(x))[: len(x) // batch * batch]).to(device)
        total = torch.zeros((), device=device)
        for some in rows.split(batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[some]), y[some])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        scheduler.step()
        losses.append(total / (len(rows) // batch))
    model.eval()
    with torch.no_grad():
        guessed = model(tested).argmax(dim=1).cpu().numpy()
    accuracy = 100 * float((guessed == drawn.labels[1]).mean())
    return Course(accuracy, torch.stack(losses).tolist(), time.perf_counter() - began)


def run(
    inputs: Inputs,
    task: Task,
    trials: int,
    folder: Path,
    device: str,
    deadline: float,
    say: Callable[[str], None],
    *,
    networks: dict[str, Network] = NETWORKS,
    epochs: int | None = None,
) -> None:
    """Train all networks trial by trial, until all are done or time is up; what is on disk already is not done again.

    All networks take a trial before any takes the next: whenever it ends, the trials are paired. No trial begins after
    the ``deadline``, of ``time.monotonic``.
    """
    held = {name: network.values(inputs) for name, network in networks.items()}
    for trial in range(trials):
        for name, network in networks.items():
            file = record(folder, task, name, trial)
            if file.exists():
                continue
            if time.monotonic() > deadline:
                say(f"time is up at trial {trial + 1} of {task.name}: run it again to go on")
                return
            course = train(network, held[name], inputs.person, task, trial, device, epochs)
            file.parent.mkdir(parents=True, exist_ok=True)
            stated = {**course._asdict(), "losses": [round(loss, 6) for loss in course.losses]}
            atomic_write_bytes(file, json.dumps(stated).encode())
            say(f"{task.name}, trial {trial + 1}, {name}: {course.accuracy:.1f} % in {course.seconds:.1f} s")


def record(folder: Path, task: Task, name: str, trial: int) -> Path:
    """Return the file of a trial."""
    plain = "".join(c if c.isalnum() else "-" for c in name.lower())
    return folder / task.name.lower() / plain / f"{trial:03d}.json"


def results(folder: Path, task: Task) -> dict[str, Array]:
    """Return the accuracies on disk of each network, as many of each as are paired, first trials first."""
    found: dict[str, list[float]] = {}
    for name in NETWORKS:
        files = (record(folder, task, name, trial) for trial in range(10**6))
        found[name] = []
        for file in files:
            if not file.exists():
                break
            accuracy = json.loads(file.read_text())["accuracy"]
            if not isinstance(accuracy, float) or not math.isfinite(accuracy):
                break
            found[name].append(accuracy)
    paired = min(map(len, found.values()))
    return {name: np.array(values[:paired]) for name, values in found.items() if paired}
