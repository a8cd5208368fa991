"""Networks trained trial by trial. Each trial is written to disk when it ends."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpca.engine.folds.device import find_device
from dpca.kernels.algebra.types import Array
from dpca.storage.disk import atomic_write_bytes
from dpca.storage.errors import DataError, StoreError, one_line


class TrialResult(NamedTuple):
    """Result of a trial."""

    accuracy: float
    """On the test set, in %."""
    losses: Sequence[float]
    """Mean loss of each epoch."""


def chosen_device(asked: str | None) -> str | None:
    """Return the name in torch of the requested device, or of the GPU; None without any.

    Raises
    ------
    DataError
        If torch does not find the requested device.
    """
    if asked is None:
        found = find_device()
        return found.name if found is not None and found.library == "torch" else None
    try:
        import torch

        torch.zeros(1, device=asked)
    except (ImportError, RuntimeError, AssertionError) as error:
        raise DataError(f"there is no device '{asked}' ({one_line(error)}): use one that torch finds") from error
    return asked


def descend(model: Any, optimizer: Any, scheduler: Any, x: Any, y: Any, *, epochs: int, batch: int, seed: int) -> Any:
    """Train a torch model by its optimizer; return the mean loss of each epoch. The rate changes after each epoch.

    Samples are shuffled before each epoch. Those of an incomplete last batch are not used in it.
    """
    import torch
    import torch.nn.functional as F

    order, batch, losses = np.random.default_rng(seed), min(batch, len(x)), []
    for _ in range(epochs):
        rows = torch.from_numpy(order.permutation(len(x))[: len(x) // batch * batch]).to(x.device)
        total = torch.zeros((), device=x.device)
        for some in rows.split(batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[some]), y[some])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        scheduler.step()
        losses.append(total / (len(rows) // batch))
    # Copied from the device once: copying in each epoch would make the device wait.
    return torch.stack(losses).tolist()


def accuracy(model: Any, x: Any, labels: Array) -> float:
    """Return the accuracy of a torch model, in %."""
    import torch

    model.eval()
    with torch.no_grad():
        guessed = torch.cat([model(some).argmax(dim=1) for some in x.split(512)]).cpu().numpy()
    return 100 * float((guessed == labels).mean())


def run(
    courses: Mapping[str, Callable[[int], TrialResult]],
    trials: int,
    folder: Path,
    deadline: float,
    say: Callable[[str], None],
) -> None:
    """Train all networks trial by trial, until all are done or time is up. Trials on disk are not repeated.

    All networks finish a trial before the next one begins, so that trials are paired. No trial begins after the
    ``deadline`` (``time.monotonic``).

    Parameters
    ----------
    courses : mapping of str to callable
        Functions that train the network of a name in the trial of a number.
    """
    for trial in range(trials):
        for name, course in courses.items():
            file = record(folder, name, trial)
            if file.exists():
                continue
            if time.monotonic() > deadline:
                say(f"time is up at trial {trial + 1} of {folder.name}: run the same command again to continue")
                return
            began = time.perf_counter()
            found = course(trial)
            seconds = time.perf_counter() - began
            file.parent.mkdir(parents=True, exist_ok=True)
            losses = [round(loss, 6) for loss in found.losses]
            stated = {"accuracy": found.accuracy, "losses": losses, "seconds": seconds}
            atomic_write_bytes(file, json.dumps(stated).encode())
            say(f"{folder.name}, trial {trial + 1}, {name}: {found.accuracy:.1f} % in {seconds:.1f} s")


def record(folder: Path, name: str, trial: int) -> Path:
    """Return the file of a trial."""
    plain = "".join(c if c.isalnum() else "-" for c in name.lower())
    return folder / plain / f"{trial:03d}.json"


def results(folder: Path, names: Iterable[str]) -> dict[str, Array]:
    """Return the accuracies on disk of each network, in the order of trials. Only paired trials count.

    Raises
    ------
    StoreError
        If a file is not a trial.
    """
    found: dict[str, list[float]] = {}
    for name in names:
        found[name] = []
        while (file := record(folder, name, len(found[name]))).exists():
            found[name].append(_accuracy_in(file))
    paired = min(map(len, found.values()))
    return {name: np.array(values[:paired]) for name, values in found.items() if paired}


def _accuracy_in(file: Path) -> float:
    try:
        value = float(json.loads(file.read_text())["accuracy"])
        if not math.isfinite(value):
            raise ValueError(f"an accuracy of {value}")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"'{file}' is not a trial ({one_line(error)}): delete it and run again") from error
    return value
