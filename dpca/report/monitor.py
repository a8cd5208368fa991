"""Metrics of a running command in a file, for the textfile collector of Prometheus's node exporter."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from dpca.storage.errors import StoreError
from dpca.storage.progress import JobProgress, Stage
from dpca.storage.transaction.outputs import OutputFile

#: The meaning of each metric. All are gauges, because a new run begins them again.
METRICS = {
    "dpca_running": "1 while the command runs, else 0",
    "dpca_start_time_seconds": "Unix time at which the command started",
    "dpca_end_time_seconds": "Unix time at which the command ended",
    "dpca_success": "1 if the last run made or found all of its outputs, else 0",
    "dpca_last_success_time_seconds": "Unix time at which a run last succeeded",
    "dpca_outputs": "number of outputs that are done, skipped or failed",
    "dpca_stage_units": "units of work of a stage",
    "dpca_stage_done_units": "finished units of work of a stage",
    "dpca_stage_seconds": "seconds that a stage took",
    "dpca_stage_peak_memory_bytes": "peak memory of a process in a stage",
    "dpca_output_samples": "samples of an output",
    "dpca_output_bytes": "bytes of an output: given (input files), decoded, or compressed",
    "dpca_output_psnr_decibels": "PSNR of an output",
    "dpca_output_ssim": "mean SSIM of an output",
}
_LAST = "dpca_last_success_time_seconds"
_HEAD = "# HELP dpca_"
# Seconds between two writes during a stage.
_PAUSE = 15.0


class MonitorFile:
    """A file with the metrics of a command. It is replaced atomically: at each stage, every 15 s, and at the end.

    As a context, it states at its end whether the command succeeded.

    Parameters
    ----------
    path : path-like, or None
        The file; None writes nothing.
    *inputs, others
        As for `dpca.storage.transaction.outputs.check_output`.

    Raises
    ------
    StoreError
        If the file exists and is not a file of metrics that dpca wrote.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *inputs: Any, others: Any = ()) -> None:
        self._file = None if path is None else OutputFile(path, "metrics file", _is_metrics, *inputs, others=others)
        self._values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        self._written = 0.0
        self.failed = False
        """Whether an output failed, although the command goes through the others."""

    def __enter__(self) -> MonitorFile:
        self.set("dpca_running", 1)
        self.set("dpca_start_time_seconds", time.time())
        before = (self._file and self._file.read()) or b""
        if (last := re.search(rb"^%b (\S+)$" % _LAST.encode(), before, re.MULTILINE)) is not None:
            self.set(_LAST, float(last[1]))
        self.write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        success, now = kind is None and not self.failed, time.time()
        self.set("dpca_running", 0)
        self.set("dpca_end_time_seconds", now)
        self.set("dpca_success", success)
        if success:
            self.set(_LAST, now)
        try:
            self.write()
        except StoreError:
            if kind is None:  # else the earlier error is the one to report
                raise

    def set(self, metric: str, value: float, **labels: str) -> None:
        """Set the value of one of `METRICS`."""
        assert metric in METRICS, metric
        self._values.setdefault(metric, {})[tuple(sorted(labels.items()))] = float(value)

    def set_report(self, report: Mapping[str, Any], output: str) -> None:
        """Set the metrics of an output from its report."""
        for name, stage in report.get("stages", {}).items():
            for key, metric in (("seconds", "dpca_stage_seconds"), ("peak_memory", "dpca_stage_peak_memory_bytes")):
                if stage.get(key) is not None:
                    self.set(metric, stage[key], output=output, stage=name)
        for key, metric, labels in (
            ("samples", "dpca_output_samples", {}),
            ("psnr", "dpca_output_psnr_decibels", {}),
            ("ssim_mean", "dpca_output_ssim", {}),
            *((f"bytes_{kind}", "dpca_output_bytes", {"kind": kind}) for kind in ("given", "decoded", "compressed")),
        ):
            if report.get(key) is not None:
                self.set(metric, report[key], output=output, **labels)

    def watched(self, progress: JobProgress, output: str) -> JobProgress:
        """Return a progress that also keeps the metrics of stages."""
        if self._file is None:
            return progress
        return lambda stage, total, unit: _WatchedStage(self, progress(stage, total, unit), output, stage, total)

    def write(self, *, at_most_every: float = 0.0) -> None:
        """Write the file, unless it was written within these seconds."""
        if self._file is not None and time.monotonic() - self._written >= at_most_every:
            self._file.write(self._text().encode())
            self._written = time.monotonic()

    def _text(self) -> str:
        lines = []
        for name, values in self._values.items():
            lines += [f"# HELP {name} {METRICS[name]}", f"# TYPE {name} gauge"]
            for labels, value in values.items():
                shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
                lines.append(f"{name}{f'{{{shown}}}' if shown else ''} {value!r}")
        return "\n".join([*lines, ""])


class _WatchedStage:
    """A stage that keeps its metrics."""

    def __init__(self, metrics: MonitorFile, stage: Stage, output: str, name: str, total: int) -> None:
        self._metrics, self._stage, self._labels, self._done = metrics, stage, {"output": output, "stage": name}, 0
        metrics.set("dpca_stage_units", total, **self._labels)
        self._keep()

    def advance(self, n: int) -> None:
        """Report ``n`` more finished units."""
        self._stage.advance(n)
        self._done += n
        self._keep(at_most_every=_PAUSE)

    def close(self) -> None:
        """End the stage."""
        self._stage.close()
        self._keep()

    def _keep(self, **when: float) -> None:
        self._metrics.set("dpca_stage_done_units", self._done, **self._labels)
        self._metrics.write(**when)


def _escaped(text: str) -> str:
    # Paths may contain invalid Unicode.
    readable = text.encode("utf-8", "replace").decode()
    return readable.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _is_metrics(content: bytes) -> bool:
    return content.startswith(_HEAD.encode())
