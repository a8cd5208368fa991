"""What the stages of a job cost, and the record of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpca.engine.memory import peak_resident_bytes
from dpca.storage.clusters import cluster_errors
from dpca.storage.workspace import Workspace


@dataclass(frozen=True)
class StageCost:
    """Seconds of wall-clock time, decoded bytes that went through, and the most memory one process held.

    A stage that found its work done by an earlier run has 0 bytes.
    """

    seconds: float
    bytes: int
    peak_memory: int

    def __add__(self, other: StageCost) -> StageCost:
        """Return what two runs of a stage cost together."""
        peak = max(self.peak_memory, other.peak_memory)
        return StageCost(self.seconds + other.seconds, self.bytes + other.bytes, peak)


NOTHING = StageCost(0.0, 0, 0)


@dataclass(frozen=True)
class StagePlan:
    """What a stage will take: seconds on the clock where nothing else runs, the same bytes, and no more memory."""

    seconds: float
    bytes: int
    memory: int


class StageRecord:
    """Costs and notes of the stages, kept in the workspace: a run that goes on reports those of the run before."""

    _STAGES = ("ingest", "range", "choose cells", "fit", "scores", "encode")

    def __init__(self, work: Workspace) -> None:
        self._work = work

    def keep(
        self, stage: str, cost: StageCost, notes: Sequence[str] = (), facts: Mapping[str, Any] | None = None
    ) -> None:
        """Keep a cost, unless the stage was done by an earlier run, which kept its own, and what was found."""
        if cost is not NOTHING:
            kept = {"cost": asdict(cost), "notes": list(notes), "facts": facts}
            self._work.mark_done(f"stage {stage}", record=kept)

    def plan(self, stages: Mapping[str, StagePlan]) -> None:
        """Keep what was planned, to be reported beside what each stage cost."""
        self._work.mark_done("planned", record={name: asdict(stage) for name, stage in stages.items()})

    def notes(self, stage: str) -> list[str]:
        """Return the notes of a stage."""
        unit = f"stage {stage}"
        return list(self._work.record(unit)["notes"]) if self._work.is_done(unit) else []

    def facts(self, stage: str) -> dict[str, Any] | None:
        """Return what a stage found, None where it is not done."""
        unit = f"stage {stage}"
        return dict(self._work.record(unit)["facts"]) if self._work.is_done(unit) else None

    def numbers(self) -> dict[str, Any]:
        """Return ``stages`` and ``notes`` as the report holds them, in the order of the stages."""
        units = {name: f"stage {name}" for name in self._STAGES}
        kept = {name: self._work.record(unit) for name, unit in units.items() if self._work.is_done(unit)}
        planned = self._work.record("planned") if self._work.is_done("planned") else {}
        return {
            "stages": {
                name: record["cost"] | ({"planned": planned[name]} if name in planned else {})
                for name, record in kept.items()
            },
            "notes": [note for record in kept.values() for note in record["notes"]],
        }


def held_by(client: Any | None) -> int:
    """Most memory that any one process of a cluster, or without one this process, ever held."""
    if client is None:
        return peak_resident_bytes()
    with cluster_errors(client):
        return max(client.run(peak_resident_bytes, on_error="ignore").values(), default=0)
