"""The cost of the stages of a job, and its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpca.storage.remote.clusters import cluster_errors
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.transaction.workspace import Workspace


@dataclass(frozen=True)
class StageCost:
    """Wall-clock seconds, decoded bytes processed, and peak memory of a process.

    If an earlier run did the work of a stage, it has 0 bytes.
    """

    seconds: float
    bytes: int
    peak_memory: int

    def __add__(self, other: StageCost) -> StageCost:
        """Return the total cost of two runs of a stage."""
        peak = max(self.peak_memory, other.peak_memory)
        return StageCost(self.seconds + other.seconds, self.bytes + other.bytes, peak)


NOTHING = StageCost(0.0, 0, 0)


def stopwatch() -> Callable[[int, int], StageCost]:
    """Start a stage; return a function from its bytes and peak memory to its cost until then."""
    began = time.perf_counter()
    return lambda n_bytes, peak_memory: StageCost(time.perf_counter() - began, n_bytes, peak_memory)


@dataclass(frozen=True)
class StagePlan:
    """The planned cost of a stage: wall-clock seconds on an idle machine, bytes, and an upper limit of the memory."""

    seconds: float
    bytes: int
    memory: int


class StageRecord:
    """Costs and notes of the stages, kept in the workspace, so that a resumed run reports those of the earlier run.

    A stage takes the time since the end of the previous one, so that the times add up to that of the run.

    Parameters
    ----------
    work : Workspace
    started : float, optional
        When the run began, as `time.time` tells. The default is now.
    """

    _STAGES = ("start", "ingest", "range", "noise", "choose cells", "fit", "scores", "encode", "report")

    def __init__(self, work: Workspace, started: float | None = None) -> None:
        self._work, self._seconds = work, dict.fromkeys(self._STAGES, 0.0)
        self._own: dict[str, dict[str, Any]] = {}
        self._last = time.perf_counter() - (0.0 if started is None else max(time.time() - started, 0.0))

    def keep(
        self, stage: str, cost: StageCost, notes: Sequence[str] = (), facts: Mapping[str, Any] | None = None
    ) -> None:
        """Keep the cost, the notes and the results of a stage, unless an earlier run did the stage."""
        if cost is not NOTHING:
            kept = {"cost": asdict(self._timed(stage, cost)), "notes": list(notes), "facts": facts}
            self._work.mark_done(f"stage {stage}", record=kept)

    def note_own(self, stage: str) -> None:
        """Note the end of a stage of this process that processes no samples, and that no later run skips."""
        self._own[stage] = asdict(self._timed(stage, StageCost(0.0, 0, peak_resident_bytes())))

    def plan(self, stages: Mapping[str, StagePlan]) -> None:
        """Keep a plan, for the report."""
        self._work.mark_done("planned", record={name: asdict(stage) for name, stage in stages.items()})

    def notes(self, stage: str) -> list[str]:
        """Return the notes of a stage."""
        return list(self._record(f"stage {stage}").get("notes", []))

    def facts(self, stage: str) -> dict[str, Any] | None:
        """Return the results of a stage, None if it is not done."""
        return self._record(f"stage {stage}").get("facts")

    def numbers(self) -> dict[str, Any]:
        """Return ``stages``, ``notes`` and, if they apply, facts of the choice of cells and the fit, for the report."""
        choice, how = self.facts("choose cells"), (self.facts("fit") or {}).get("how")
        kept = {name: record for name in self._STAGES if (record := self._record(f"stage {name}"))}
        costs = self._own | {name: record["cost"] for name, record in kept.items()}
        planned = self._record("planned")
        return {
            "stages": {
                name: costs[name] | ({"planned": planned[name]} if name in planned else {})
                for name in self._STAGES
                if name in costs
            },
            "notes": [note for record in kept.values() for note in record["notes"]],
            **({"cells_chosen": _cells(choice["parameters"]), "cells_tried": choice["tried"]} if choice else {}),
            **({"fitted_by": how} if how else {}),
        }

    def _timed(self, stage: str, cost: StageCost) -> StageCost:
        """Return the cost with the seconds since the end of the previous stage."""
        now = time.perf_counter()
        self._seconds[stage] += now - self._last
        self._last = now
        return replace(cost, seconds=self._seconds[stage])

    def _record(self, unit: str) -> dict[str, Any]:
        return self._work.record(unit) if self._work.is_done(unit) else {}


def _cells(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that describe cells, without those of their components."""
    return {name: parameters[name] for name in ("cell_shape", "overlap", "shared")}


def held_by(client: Any | None) -> int:
    """Peak memory of any process of a cluster, or of this process if there is no cluster."""
    if client is None:
        return peak_resident_bytes()
    with cluster_errors(client):
        return max(client.run(peak_resident_bytes, on_error="ignore").values(), default=0)
