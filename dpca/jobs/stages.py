"""What a stage of a job cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dpca.engine.memory import peak_resident_bytes
from storage.clusters import cluster_errors


@dataclass(frozen=True)
class StageCost:
    """Seconds of wall-clock time, decoded bytes that went through, and the most memory one process held.

    A stage that found its work done by an earlier run has 0 bytes.
    """

    seconds: float
    bytes: int
    peak_memory: int

    def as_dict(self) -> dict[str, Any]:
        """Return the three numbers as the report holds them."""
        return asdict(self)


NOTHING = StageCost(0.0, 0, 0)


def held_by(client: Any | None) -> int:
    """Most memory that any one process of a cluster, or without one this process, ever held."""
    if client is None:
        return peak_resident_bytes()
    with cluster_errors(client):
        return max(client.run(peak_resident_bytes, on_error="ignore").values(), default=0)
