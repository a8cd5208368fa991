"""Shared parts of the commands and programs that run a whole job: input, settings and the report of the result."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpca.cli.arguments import reading_options
from dpca.cli.goals import check_masked_goal, options_by_variable
from dpca.cli.model_arguments import names_no_components, names_no_model, noise_model, partitioned_model
from dpca.cli.running import conclude, say
from dpca.cli.served import request_of, served
from dpca.cli.work import begin_start, run_of, shown_progress
from dpca.engine.clusters.forking import start_forking
from dpca.plots.numbers import counted
from dpca.report.monitor import MonitorFile
from dpca.report.record import format_table, read_report, report_folder
from dpca.report.words import result, size_warning, times_smaller
from dpca.storage.errors import StoreError
from dpca.storage.input import fingerprint_of_input, open_input, require_varied, samples_of_input
from dpca.storage.progress import bar_progress
from dpca.storage.readers import Reader
from dpca.storage.remote.objects import Place, place_of
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.transaction.outputs import work_folder

if TYPE_CHECKING:
    from dpca.jobs.scores.compression import CompressionResult


def given_input(options: argparse.Namespace, embedded: Callable[[], Reader] | None) -> Stack | Reader:
    """Open the source of the options, or the embedded one if they have none."""
    source = options.source if embedded is None or options.source else embedded()
    mask = getattr(options, "mask", None)  # some commands have none
    return open_input(source, key=options.key, axes=options.axes, data_range=options.data_range, mask=mask)


def output_path(options: argparse.Namespace, suffix: str) -> str:
    """Return the path of the output. The default is the name of the source and a suffix."""
    first = os.path.normpath(options.source[0]) if options.source else "portraits"
    name = os.path.basename(first).split("*")[0].split(".")[0] or "stack"
    return options.output or f"{name}{suffix}.zarr"


def tell_result(report: Mapping[str, Any], output: str, already_done: bool, *more: str) -> None:
    """Print the numbers of a report, further paragraphs, and the paths of the store and the report."""
    if already_done:
        say(f"nothing to do: '{output}' was made from this source with these settings")
    say("\n\n".join([format_table(report), *more]))
    say(f"store   {output}\nreport  {report_folder(output) / 'index.html'}")


def _end_all(reports: Mapping[str, tuple[Mapping[str, Any], bool]], folder: str) -> int:
    """Print the results of all variables: each one as of a job of its own, and a last line for all."""
    for output, (report, already_done) in reports.items():
        tell_result(report, output, already_done)
        say("")
    for output, (report, _) in reports.items():
        say(f"'{output}': {result(report)}")
    decoded, small = (
        sum(report[name] for report, _ in reports.values()) for name in ("bytes_decoded", "bytes_compressed")
    )
    smaller = f"{counted(len(reports), 'variable')}, {times_smaller(decoded / small)} than the decoded samples"
    conclude(f"'{folder}': {smaller}", "export", next(iter(reports)), "out/")
    return 0


def _end(report: Mapping[str, Any], already_done: bool, output: str) -> int:
    """Print the result of the main job, and the command that follows it."""
    warning = size_warning(report)
    notes = [note for note in report.get("notes", ()) if note != warning]
    tell_result({**report, "notes": notes}, output, already_done)
    if warning is not None:  # at the end, where it is read
        say(f"note: {warning}")
    after = ("export", output, "out/") if "bytes_compressed" in report else ("explore", output)
    conclude(f"'{output}': {result(report)}", *after)
    return 0


def run_job(options: argparse.Namespace, given: Stack | Reader, output: str, model: Any) -> int:
    """Run the main job with an unfitted model and the options of `add_job_options`."""
    with MonitorFile(options.metrics, given, others=written_for(output)) as metrics, run_of(options) as run:
        done = _make(options, given, output, model, metrics, run)
    return _end(done.report, done.already_done, output)


def _make(
    options: argparse.Namespace,
    given: Stack | Reader,
    output: str,
    model: Any,
    metrics: MonitorFile,
    run: Run,
    request: str | None = None,
) -> CompressionResult:
    # Imported here, because it takes seconds.
    from dpca.jobs import compress, find_done

    settings = settings_of(options, model)
    # Before a cluster starts, because that takes seconds, and errors and finished jobs need none.
    done = find_done(given, output, settings, overwrite=options.overwrite)
    if done is None:
        run = replace(run, progress=metrics.watched(run.progress, output))
        done = compress(given, output, settings, run=run, request=request, plan=options.plan)
    metrics.set_report(done.report, output)
    return done


def written_for(output: str) -> list[Place]:
    """Return all places that a job writes to for an output."""
    place = place_of(output)
    report = report_folder(output)  # refuses what is no output
    return [place, work_folder(place), report]


def settings_of(options: argparse.Namespace, model: Any) -> Any:
    """Return the `CompressionSettings` of the options of `add_job_options`."""
    from dpca.jobs import CompressionSettings

    goal, reconstruct = getattr(options, "quality", None), getattr(options, "reconstruct", None)
    check_masked_goal(options.mask, goal or ())
    return CompressionSettings(
        model,
        reconstruct=not (options.source or goal) if reconstruct is None else reconstruct,
        keep_stack=not options.source if options.keep_stack is None else options.keep_stack,
        key=options.key,
        axes=options.axes,
        goal=goal,
        every_sample=goal is not None and options.every_sample,
        noise=noise_model(options),
        fewer_components=_reduces_components(options, model),
        choose_cells=goal is not None and names_no_model(options),
        reading=reading_options(options),
    )


def _reduces_components(options: argparse.Namespace, model: Any) -> bool:
    """Return whether the number of components is the default, and samples may be skipped."""
    counted_ones = isinstance(getattr(model, "n_components", None), int)
    return options.on_error == "skip" and counted_ones and names_no_components(options)


def process_source(options: argparse.Namespace, embedded: Callable[[], Reader] | None = None) -> int:
    """``dpca compress`` and ``dpca scores``. Without a source, ``embedded`` makes one."""
    output = output_path(options, "-cpca" if options.source else "")
    wanted = options_by_variable(options, output) or {output: options}
    given = {path: given_input(own, embedded) for path, own in wanted.items()}
    requests = {path: job_request(own, given[path]) for path, own in wanted.items()}
    found: dict[str, tuple[Mapping[str, Any], bool]] = {
        path: (report, True) for path, request in requests.items() if (report := served_report(request, path))
    }
    written = [place for path in wanted for place in written_for(path)]
    with MonitorFile(options.metrics, *given.values(), others=written) as metrics:
        for path, (earlier, _) in found.items():
            metrics.set_report(earlier, path)
        if missing := [path for path in wanted if path not in found]:
            for path in missing:
                require_varied(given[path])
            found |= _make_all({path: wanted[path] for path in missing}, given, requests, metrics)
    if wanted.get(output) is options:
        return _end(*found[output], output)
    return _end_all({path: found[path] for path in wanted}, output)


def _make_all(
    wanted: Mapping[str, argparse.Namespace],
    given: Mapping[str, Stack | Reader],
    requests: Mapping[str, str],
    metrics: MonitorFile,
) -> dict[str, tuple[Mapping[str, Any], bool]]:
    """Make stores, one after the other, by the same workers. Return the reports, and which stores existed already."""
    options, found = next(iter(wanted.values())), {}
    if not (options.scheduler or options.cluster):
        start_forking("dpca.jobs", "dpca.kernels.sweeps")
    with (
        closing(begin_start(options, shown_progress)) as starting,  # it begins before the imports, which take seconds
        run_of(options, starting=starting) as run,
    ):
        for path, own in wanted.items():
            model = partitioned_model(own, samples_of_input(given[path]))
            done = _make(own, given[path], path, model, metrics, run, requests[path])
            found[path] = done.report, done.already_done
            run = replace(run, started=None)  # the next store begins now
    return found


def job_request(options: argparse.Namespace, given: Stack | Reader) -> str:
    """Return a hash of the input, the options and this version."""
    return request_of(options, fingerprint_of_input(given))


def served_report(request: str, output: str) -> dict[str, Any] | None:
    """Return the report of a store that was made for this request, None if the store is missing or damaged."""
    try:
        return None if served(request, output) is None else read_report(report_folder(output))
    except StoreError:
        return None


def plan(options: argparse.Namespace) -> int:
    """``dpca plan``."""
    given = given_input(options, None)
    from dpca.engine.clusters.cluster import memory_limit  # imported here, because it takes seconds
    from dpca.jobs.plans.plan import plan_job
    from dpca.jobs.plans.plan_words import as_facts, in_words
    from dpca.storage.remote.memory import room_within, thread_count

    settings = settings_of(options, _model(options, samples_of_input(given)))
    settings.model.check_parameters_for(0)
    budget = room_within(memory_limit(options.memory, thread_count()))
    shown = bar_progress if options.json else shown_progress  # lines would not be JSON
    plans = plan_job(given, settings, workers=options.workers, budget=budget, progress=shown)
    for line in map(json.dumps, map(as_facts, plans)) if options.json else in_words(plans):
        say(line)
    if not options.json:
        job = "scores" if options.quality is None else "compress"
        times = f"{plans[0].seconds:,.0f} s with {counted(plans[0].workers, 'worker')}"
        if options.method is not None:  # no command fits by this method
            say(f"{times}; next: dpca.StreamingPCA in Python")
            return 0
        from dpca.cli.program import next_command  # imported here, because it imports this module

        workers = [] if options.workers is None else [f"--workers={plans[0].workers}"]
        # Keys of object stores stay out of logs.
        hidden = ["workers", "storage_option"]
        following = next_command(job, options, *options.source, "OUTPUT.zarr", without=hidden)
        conclude(times, *following, *workers)
    return 0


def _model(options: argparse.Namespace, n_samples: int) -> Any:
    if options.method is None:
        return partitioned_model(options, n_samples)
    from dpca.models import StreamingPCA

    count = min(50, n_samples) if options.components is None else options.components
    return StreamingPCA(count, method=options.method, random_state=options.seed)
