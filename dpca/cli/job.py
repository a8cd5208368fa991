"""``dpca job run``: makes what a file asks for, once, and logs every step as a line of JSON."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import ChainMap, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpca.cli.job_file import JobFile, read_job_file
from dpca.cli.jobs import given_input, job_request, served_report, settings_of
from dpca.cli.model_arguments import partitioned_model
from dpca.cli.running import known_error, say
from dpca.cli.work import run_options
from dpca.storage.claim import Claim
from dpca.storage.disk import atomic_write_bytes, read_file
from dpca.storage.errors import ClusterError, StoreError
from dpca.storage.lease import Lease
from dpca.storage.manifest import METADATA, digest_of
from dpca.storage.network import use_storage_options
from dpca.storage.objects import ObjectPath, place_of
from dpca.storage.outputs import resolved_output, work_folder
from dpca.storage.progress import Stage, no_progress
from dpca.storage.readers import Reader
from dpca.storage.stack import Stack

_DONE = "it was made from these inputs with these settings"
# Names, passwords and signatures in URLs.
_SECRETS = re.compile(r"(?<=://)[^/@\s'\"]*@|\?[^\s'\"]*=[^\s'\"]*")
# Numbers of a report that the log and the record repeat.
_TOLD = ("samples", "bytes_given", "bytes_decoded", "bytes_compressed", "psnr", "ssim_mean")
# Seconds before the second try, and twice as many before each further one.
_PAUSE = 1.0


def run_job_file(options: argparse.Namespace) -> int:
    """``dpca job run``."""
    job = read_job_file(options.job)
    if job.options.storage_option:
        use_storage_options(dict(ChainMap(*reversed(job.options.storage_option))))
    given = {output: given_input(job.options_of(output), None) for output in job.outputs}
    if options.dry_run:
        return _plan(job, given)
    with _held(job.record):
        return _Run(job, given).run()


def _tell(event: str, **facts: Any) -> None:
    """Print one event of the log."""
    text = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **_clean(facts)})
    say(text)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _SECRETS.sub("", value)
    if isinstance(value, Mapping):
        return {name: _clean(one) for name, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list | tuple) else value


@contextmanager
def _held(record: str) -> Iterator[None]:
    """Keep every other run of the job out."""
    folder = work_folder(resolved_output(record))
    claim = Lease(folder, record) if isinstance(folder, ObjectPath) else Claim(Path(folder), record)
    try:
        yield
    finally:
        claim.end()


def _plan(job: JobFile, given: Mapping[str, Stack | Reader]) -> int:
    """Tell what each output would take; nothing is written, and no cluster but one on this machine is started."""
    from dpca.engine.memory import parallel_tasks, task_budget, thread_count
    from dpca.jobs.compression import find_done, plan_compression
    from dpca.jobs.plan import plan_job
    from dpca.jobs.plan_words import as_facts

    elsewhere = job.options.scheduler or job.options.cluster
    with run_options(job.options, lambda text: None) as how:
        for output, source in given.items():
            options = job.options_of(output)
            if served_report(job_request(options, source), output) is not None:
                _tell("skipped", output=output, why=_DONE)
                continue
            settings = settings_of(options, partitioned_model(options))
            if find_done(source, output, settings, overwrite=options.overwrite) is not None:
                _tell("skipped", output=output, why=_DONE)
                continue
            workers: dict[str, Any] = {"workers": [1]}
            if not elsewhere:
                plan_compression(source, settings, how["client"])
                at_once = parallel_tasks(how["client"], thread_count())
                workers = {"workers": [at_once], "budget": task_budget(how["client"], thread_count())}
            found = as_facts(*plan_job(source, settings, **workers))
            found["bytes_compressed"] = found.pop("bytes_written")
            _tell("plan", output=output, inputs=job.outputs[output], **found)
    return 0


class _Run:
    """One run of a job: every output that is not there is made."""

    def __init__(self, job: JobFile, given: Mapping[str, Stack | Reader]) -> None:
        self._job, self._given = job, given
        self._codes: list[int] = []
        self._counts = dict.fromkeys(("done", "skipped", "failed"), 0)
        self._record = _read_record(job.record)

    def run(self) -> int:
        _tell("start", job=self._job.path, outputs=len(self._given))
        waiting = deque((output, 0) for output in self._given if not self._is_served(output))
        try:
            while waiting:
                with run_options(self._job.options, lambda text: _tell("cluster", says=text)) as how:
                    how["progress"] = _logged
                    while waiting and self._makes(*waiting.popleft(), how, waiting):
                        pass
        except BaseException as error:
            _tell("stopped", why=type(error).__name__)
            raise
        code = self._codes[0] if self._codes else 0
        _tell("end", **self._counts, code=code)
        return code

    def _is_served(self, output: str) -> bool:
        """Tell whether an earlier run has made an output, which needs no library that computes."""
        report = served_report(job_request(self._job.options_of(output), self._given[output]), output)
        if report is not None:
            self._finish("skipped", output, report, why=_DONE)
        return report is not None

    def _makes(self, output: str, tries: int, how: Mapping[str, Any], waiting: deque[tuple[str, int]]) -> bool:
        """Make an output, or have it wait for another try; return whether the cluster can be used again."""
        from dpca.jobs import compress, find_done

        began, options, given = time.perf_counter(), self._job.options_of(output), self._given[output]
        try:
            settings = settings_of(options, partitioned_model(options))
            done = find_done(given, output, settings, overwrite=options.overwrite)
            if done is None:
                _tell("begin", output=output, inputs=self._job.outputs[output], samples=_count(given))
                notes: Callable[[str], None] = lambda text: _tell("note", output=output, says=text)  # noqa: E731
                asked = {"request": job_request(options, given), "plan": options.plan}
                done = compress(given, output, settings, say=notes, **asked, **how)
        except Exception as error:
            if (known := known_error(error)) is None:
                raise
            again = isinstance(error, StoreError | ClusterError) and tries < self._job.retries
            _tell("failed", output=output, error=known[1], code=known[0], again=again)
            if again:
                time.sleep(_PAUSE * 2**tries)
                waiting.append((output, tries + 1))
            else:
                self._counts["failed"] += 1
                self._codes.append(known[0])
            return not isinstance(error, ClusterError)
        event = "skipped" if done.already_done else "done"
        self._finish(event, output, done.report, seconds=round(time.perf_counter() - began, 3))
        return True

    def _finish(self, event: str, output: str, report: Mapping[str, Any], **facts: Any) -> None:
        self._counts[event] += 1
        numbers = {name: report[name] for name in _TOLD if name in report}
        _tell(event, output=output, **numbers, **facts)
        given = self._given[output]
        entry = {
            "inputs": self._job.outputs[output],
            "content": given.fingerprint if isinstance(given, Stack) else given.fingerprint(),
            # Which vouches for every other file of the store.
            METADATA: digest_of(read_file(place_of(output) / METADATA)),
            **numbers,
        }
        if self._record.get(output) != (clean := _clean(entry)):
            self._record[output] = clean
            text = json.dumps(self._record, indent=2, sort_keys=True) + "\n"
            atomic_write_bytes(place_of(self._job.record), text.encode())


def _count(given: Stack | Reader) -> int:
    return given.n_samples if isinstance(given, Stack) else len(given)


def _logged(stage: str, total: int, unit: str) -> Stage:
    _tell("stage", stage=stage, total=total, unit=unit)
    return no_progress(stage, total, unit)


def _read_record(path: str) -> dict[str, Any]:
    try:
        found = json.loads(read_file(place_of(path)))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"the record '{path}' cannot be read ({error}): move it away, a new one is made") from error
    if not isinstance(found, dict):
        raise StoreError(f"the record '{path}' is none that a job wrote: give another 'record'")
    return found
