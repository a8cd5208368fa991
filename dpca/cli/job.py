"""``dpca job run``: makes the outputs of a job file once, and logs every step as a line of JSON."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import ChainMap, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dpca.cli.job_file import JobFile, read_job_file
from dpca.cli.jobs import given_input, job_request, served_report, settings_of, written_for
from dpca.cli.model_arguments import partitioned_model
from dpca.cli.running import known_error, say
from dpca.cli.work import Heartbeat, run_of
from dpca.engine.folds.stopping import Stopped
from dpca.report.monitor import MonitorFile
from dpca.storage.disk import read_file
from dpca.storage.errors import ClusterError, StoreError
from dpca.storage.input import fingerprint_of_input, samples_of_input
from dpca.storage.integrity.manifest import METADATA, digest_of
from dpca.storage.progress import Stage, no_progress
from dpca.storage.readers import Reader
from dpca.storage.remote.network import use_storage_options
from dpca.storage.remote.objects import ObjectPath, Place, place_of
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.claim import Claim
from dpca.storage.transaction.lease import Lease
from dpca.storage.transaction.outputs import OutputFile, work_folder

_DONE = "it was made from these inputs with these settings"
# User names, passwords and signatures in URLs.
_SECRETS = re.compile(r"(?<=://)[^/@\s'\"]*@|\?[^\s'\"]*=[^\s'\"]*")
# Numbers of a report that the log and the record contain.
_REPORTED = ("samples", "bytes_given", "bytes_decoded", "bytes_compressed", "psnr", "ssim_mean")
# Seconds before the second try. Each further pause is twice as long.
_PAUSE = 1.0


def run_job_file(options: argparse.Namespace) -> int:
    """``dpca job run``."""
    job = read_job_file(options.job)
    if job.options.storage_option:
        use_storage_options(dict(ChainMap(*reversed(job.options.storage_option))))
    given = {output: given_input(job.options_of(output), None) for output in job.outputs}
    record = OutputFile(job.record, "record", _is_record, *given.values(), others=_written(job))
    if options.dry_run:
        return _plan(job, given)
    metrics = MonitorFile(job.options.metrics, *given.values(), others=[*_written(job), record.place])
    with _held(record.place), metrics:
        return _JobRun(job, given, record, metrics).run()


def _log_event(event: str, **facts: Any) -> None:
    """Print one event of the log."""
    text = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **_clean(facts)})
    say(text)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _SECRETS.sub("", value)
    if isinstance(value, Mapping):
        return {name: _clean(one) for name, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list | tuple) else value


def _written(job: JobFile) -> list[Place]:
    """Return all places that the job writes to, except the record."""
    return [place for output in job.outputs for place in written_for(output)]


@contextmanager
def _held(record: Place) -> Iterator[None]:
    """Lock the record, so that no other run of the job starts."""
    folder, shown = work_folder(record), str(record)
    claim = Lease(folder, shown) if isinstance(folder, ObjectPath) else Claim(folder.absolute(), shown)
    try:
        yield
    finally:
        claim.end()


def _plan(job: JobFile, given: Mapping[str, Stack | Reader]) -> int:
    """Log the plan of each output. Nothing is written, and only a cluster on this machine is started."""
    from dpca.jobs.plans.plan import plan_job
    from dpca.jobs.plans.plan_words import as_facts
    from dpca.jobs.scores.compression import find_done

    elsewhere = job.options.scheduler or job.options.cluster
    with run_of(job.options, lambda text: None, no_progress) as run:
        for output, source in given.items():
            options = job.options_of(output)
            if served_report(job_request(options, source), output) is not None:
                _log_event("skipped", output=output, why=_DONE)
                continue
            settings = settings_of(options, partitioned_model(options, samples_of_input(source)))
            if find_done(source, output, settings, overwrite=options.overwrite) is not None:
                _log_event("skipped", output=output, why=_DONE)
                continue
            workers: dict[str, Any] = {"workers": [1]}
            if not elsewhere:
                workers = {"workers": [run.n_parallel()], "budget": run.task_bytes()}
            found = as_facts(*plan_job(source, settings, **workers))
            found["bytes_compressed"] = found.pop("bytes_written")
            _log_event("plan", output=output, inputs=job.outputs[output], **found)
    return 0


class _JobRun:
    """One run of a job. It makes every missing output."""

    def __init__(
        self, job: JobFile, given: Mapping[str, Stack | Reader], record: OutputFile, metrics: MonitorFile
    ) -> None:
        self._job, self._given, self._file, self._metrics = job, given, record, metrics
        self._codes: list[int] = []
        self._made_before = False
        self._counts = dict.fromkeys(("done", "skipped", "failed"), 0)
        self._record: dict[str, Any] = json.loads(record.read() or "{}")

    def run(self) -> int:
        _log_event("start", job=self._job.path, outputs=len(self._given))
        waiting = deque((output, 0) for output in self._given if not self._is_served(output))
        try:
            while waiting:
                with run_of(self._job.options, lambda text: _log_event("cluster", says=text), _logged) as run:
                    while waiting and self._makes(*waiting.popleft(), run, waiting):
                        pass
        except BaseException as error:
            _log_event("stopped", why=str(error) if isinstance(error, Stopped) else type(error).__name__)
            raise
        code = self._codes[0] if self._codes else 0
        _log_event("end", **self._counts, code=code)
        return code

    def _is_served(self, output: str) -> bool:
        """Return whether an earlier run has made an output. This needs no library that takes seconds to import."""
        report = served_report(job_request(self._job.options_of(output), self._given[output]), output)
        if report is not None:
            self._finish("skipped", output, report, why=_DONE)
        return report is not None

    def _makes(self, output: str, tries: int, run: Run, waiting: deque[tuple[str, int]]) -> bool:
        """Make an output, or queue it for another try. Return whether the cluster can be used again."""
        from dpca.jobs import compress, find_done

        began, options, given = time.perf_counter(), self._job.options_of(output), self._given[output]
        try:
            settings = settings_of(options, partitioned_model(options, samples_of_input(given)))
            done = find_done(given, output, settings, overwrite=options.overwrite)
            if done is None:
                _log_event("begin", output=output, inputs=self._job.outputs[output], samples=samples_of_input(given))
                notes: Callable[[str], None] = lambda text: _log_event("note", output=output, says=text)  # noqa: E731
                # Only the first output begins with the program.
                began_with, self._made_before = None if self._made_before else run.started, True
                progress = self._metrics.watched(run.progress, output)
                run = replace(run, say=notes, progress=progress, started=began_with)
                request = job_request(options, given)
                done = compress(given, output, settings, run=run, request=request, plan=options.plan)
        except Exception as error:
            if (known := known_error(error)) is None:
                raise
            again = isinstance(error, StoreError | ClusterError) and tries < self._job.retries
            _log_event("failed", output=output, error=known[1], code=known[0], again=again)
            if again:
                time.sleep(_PAUSE * 2**tries)
                waiting.append((output, tries + 1))
            else:
                self._codes.append(known[0])
                self._count("failed")
            return not isinstance(error, ClusterError)
        event = "skipped" if done.already_done else "done"
        self._finish(event, output, done.report, seconds=round(time.perf_counter() - began, 3))
        return True

    def _finish(self, event: str, output: str, report: Mapping[str, Any], **facts: Any) -> None:
        self._metrics.set_report(report, output)
        self._count(event)
        numbers = {name: report[name] for name in _REPORTED if name in report}
        _log_event(event, output=output, **numbers, **facts)
        given = self._given[output]
        entry = {
            "inputs": self._job.outputs[output],
            "content": fingerprint_of_input(given),
            # The metadata contain the integrity manifest, so this digest covers every file of the store.
            METADATA: digest_of(read_file(place_of(output) / METADATA)),
            **numbers,
        }
        if self._record.get(output) != (clean := _clean(entry)):
            self._record[output] = clean
            text = json.dumps(self._record, indent=2, sort_keys=True) + "\n"
            self._file.write(text.encode())

    def _count(self, state: str) -> None:
        self._counts[state] += 1
        for name, count in self._counts.items():
            self._metrics.set("dpca_outputs", count, state=name)
        self._metrics.failed = bool(self._codes)
        self._metrics.write()


def _logged(stage: str, total: int, unit: str) -> Stage:
    def tell(done: int | None) -> None:
        about = {"stage": stage, "total": total, "unit": unit}
        if done is None:
            _log_event("stage", **about)
        else:
            _log_event("progress", **about, done=done)

    return Heartbeat(tell)


def _is_record(content: bytes) -> bool:
    """Return whether a file is a record. A record has inputs and two digests for every output."""
    try:
        found = json.loads(content)
        entries = [(one["inputs"], one["content"], one[METADATA]) for one in found.values()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    return bool(entries) and all(
        isinstance(inputs, list) and isinstance(given, str) and isinstance(made, str) for inputs, given, made in entries
    )
