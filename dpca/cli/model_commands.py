"""Subcommands that fit or use a model. Each passes its options to one function and prints the result."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpca.choices import GOALS, NOISE_SHARE
from dpca.cli.arguments import given_options, reading_options
from dpca.cli.goals import check_masked_goal
from dpca.cli.jobs import given_input, job_request
from dpca.cli.model_arguments import given_noise_map, noise_model, partitioned_model
from dpca.cli.running import conclude, say
from dpca.cli.served import request_of, served, stated
from dpca.cli.work import run_of, shown_progress
from dpca.parameters.denoising import DenoisingParameters
from dpca.plots.numbers import counted
from dpca.report.record import read_report, report_folder
from dpca.report.words import kept_components, times_smaller
from dpca.storage import DataError, Stack, open_stack
from dpca.storage.arrays.reading import array_in, open_group, root_facts
from dpca.storage.disk import file_bytes, folder_bytes, readable_size
from dpca.storage.ranges import range_words
from dpca.storage.readers.opening import is_zarr, open_reader
from dpca.storage.stack import VARIABLES
from dpca.storage.survey import require_samples

if TYPE_CHECKING:
    from dpca import Progress
    from dpca.jobs.base.stages import StageCost

# Seconds between two lines of the progress of a fit.
_PAUSE = 10.0

# Jobs are imported only if there is work, because their libraries take seconds. A finished output needs none.


def fit(options: argparse.Namespace) -> int:
    """``dpca fit``."""
    stack = _stack(options, options.variables)
    request = request_of(options, stack.fingerprint, stack.data_range)
    if options.live is None and (facts := served(request, options.model)) is not None:
        _print_result(options.model, None)
        numbers = facts["numbers"]
    else:
        wanted = partitioned_model(options)
        from dpca.jobs import fit_store

        budget = {"live": options.live, "max_seconds": options.max_seconds, "max_samples": options.max_samples}
        if options.live is None and any(budget.values()):
            raise DataError("--max-seconds and --max-samples require a store for the model so far: give --live PATH")
        with run_of(options) as run:
            watch = None if options.live is None else _PrintedProgress()
            model, cost, notes, stopped = fit_store(
                stack, options.model, wanted, run=run, request=request, callback=watch, **budget
            )
        numbers = model.report_numbers()
        if stopped:
            seen = f"the model of {model.n_samples_seen_:,} of {stack.n_samples:,} samples"
            say(f"the budget ended the fit: '{options.live}' has {seen}, the same command resumes")
        else:
            _print_result(options.model, cost)
        for note in notes:
            say(f"note: {note}")
    kept, share = kept_components(numbers["components"], numbers.get("ranks")), numbers["explained_variance_ratio"]
    parts = next(parts for parts in ("cells", "bands", "landmarks", VARIABLES) if parts in numbers)
    each = " each" if parts in ("cells", "bands") else ""
    found = f"{parts} {', '.join(numbers[parts])}" if parts == VARIABLES else f"{numbers[parts]:,} {parts}"
    conclude(
        f"{found}, {kept}{each}, {share:.2%} of the variance",
        *("transform", options.model, options.stack, "SCORES.zarr"),
        *(() if options.mask is None else ("--mask", options.mask)),
    )
    return 0


def transform(options: argparse.Namespace) -> int:
    """``dpca transform``."""
    known = stated(options.model).get(VARIABLES)
    stack = _stack(options, None if known is None else known["keys"])
    request = request_of(options, stack.fingerprint, stack.data_range, stated(options.model).get("fingerprint"))
    if served(request, options.scores) is not None:
        _print_result(options.scores, None)
    else:
        from dpca.jobs import transform_store

        with run_of(options) as run:
            cost = transform_store(
                stack, options.model, options.scores, reconstruct=options.reconstruct, run=run, request=request
            )
        _print_result(options.scores, cost)
    lines = _quality(options.scores)
    if known is None and not any(" ssim " in quality for quality in lines):
        from dpca.kernels.quality import WINDOW

        lines.append(f"no ssim, it requires images or volumes of at least {WINDOW} pixels a side")
    shown = ("explore", options.scores, "--model", options.model) if known is None else ("info", options.scores)
    conclude("   ".join(lines), *shown)
    return 0


def encode(options: argparse.Namespace) -> int:
    """``dpca encode``."""
    goal = {name: getattr(options, name) for name in GOALS}
    check_masked_goal(options.mask, [name for name, value in goal.items() if value is not None])
    stack, noise = _stack(options), noise_model(options)
    request = request_of(options, stack.fingerprint, stack.data_range, stated(options.model).get("fingerprint"))
    if served(request, options.target) is not None:
        _print_result(options.target, None)
    else:
        from dpca.jobs import encode_store

        with run_of(options) as run:
            cost = encode_store(
                stack,
                options.model,
                options.target,
                run=run,
                request=request,
                every_sample=options.every_sample,
                noise=noise,
                **goal,
            )
        _print_result(options.target, cost)
    size = folder_bytes(options.target)
    say(f"{size:,} bytes, {size / stack.n_samples:,.0f} per sample")
    smaller = f"{times_smaller(stack.nbytes / size)} than the decoded samples"
    conclude("   ".join([smaller, *_quality(options.target)]), "export", options.target, "out/")
    return 0


def append(options: argparse.Namespace) -> int:
    """``dpca append``."""
    from dpca.jobs import append_store
    from dpca.jobs.base.stages import NOTHING

    given = given_input(options, None)
    original = None if options.stack is None else open_stack(options.stack)
    with run_of(options) as run:
        done = append_store(
            options.store,
            given,
            drift=options.drift,
            original=original,
            reading=reading_options(options),
            run=run,
        )
    if done.cost is NOTHING:
        say(f"nothing to do: '{options.store}' has these samples already")
        return 0
    _print_result(options.store, done.cost)
    for name, (before, new) in done.measures.items():
        say(f"{name} {new:.4g} of the new samples with the existing components, {before:.4g} of the earlier samples")
    if done.drifted:
        say(
            f"note: the new samples {done.drifted}"
            + (": all samples were fitted and encoded again" if done.refitted else "")
        )
    if done.missed:
        say(f"note: {done.missed}")
    size = readable_size(folder_bytes(options.store))
    conclude(f"'{options.store}': {counted(done.samples, 'sample')} appended, {size} in all", "info", options.store)
    return 0


def export(options: argparse.Namespace) -> int:
    """``dpca export``."""
    say(f"export '{options.store}'")  # before the imports, which take seconds
    from dpca.jobs import export_store
    from dpca.storage.run import Run

    # The files are on this machine, and threads of this process write them.
    run = Run(progress=shown_progress, overwrite=options.overwrite, say=say)
    done = export_store(
        options.store,
        options.target,
        format=options.format,
        samples=options.samples,
        n_components=options.components,
        model=options.model,
        quality=options.jpeg_quality,
        run=run,
    )
    _print_result(options.target, done.cost)
    size = folder_bytes(options.target) if os.path.isdir(options.target) else file_bytes(options.target)
    many = counted(done.n_samples, "sample")
    conclude(f"'{options.target}': {many} as {done.format}, {readable_size(size)}", "info", options.target)
    return 0


def reconstruct(options: argparse.Namespace) -> int:
    """``dpca reconstruct``."""
    given = (options.store,) if options.model is None else (options.model, options.store)
    request = request_of(options, *(stated(store).get("fingerprint") for store in given))
    if served(request, options.target) is not None:
        _print_result(options.target, None)
    else:
        from dpca.jobs import reconstruct_store

        with run_of(options) as run:
            cost = reconstruct_store(
                options.model, options.store, options.target, n_components=options.components, run=run, request=request
            )
        _print_result(options.target, cost)
    stack = open_stack(options.target)
    what = f"{counted(stack.n_samples, 'sample')} of {' x '.join(map(str, stack.sample_shape))} {stack.dtype}"
    conclude(f"'{options.target}': {what}", "explore", options.target)
    return 0


def denoise(options: argparse.Namespace) -> int:
    """``dpca denoise``."""
    source, reading = given_input(options, None), reading_options(options)
    given = given_options(options, DenoisingParameters)
    given = given_noise_map(given)
    request = job_request(options, source)
    if not options.dry_run and served(request, options.target) is not None:
        _print_result(options.target, None)
    else:
        from dpca import Denoiser
        from dpca.jobs import denoise_store, plan_denoising
        from dpca.jobs.denoising.denoise import outline_of

        denoiser = Denoiser(**given)
        with run_of(options) as run:
            if options.dry_run:
                from dpca.jobs.plans.plan_words import in_words

                samples = outline_of(source, reading, run)
                plan = denoiser.plan(samples, run)
                n, *lengths = samples.shape
                reads = (
                    plan.read_bytes / (n * math.prod(lengths) * samples.dtype.itemsize) + 1 + denoiser.n_before(n) / n
                )
                workers, budget = [run.n_parallel()], run.task_bytes()
                plans = plan_denoising(
                    source, denoiser, reading=reading, workers=workers, budget=budget, progress=run.progress
                )
                for line in in_words(plans):
                    say(line)
                say(f"reads of the samples  {reads:.2f}")
                times = f"{plans[0].seconds:,.0f} s with {counted(plans[0].workers, 'worker')}"
                say(f"{times}; next: the same command without --dry-run")
                return 0
            cost = denoise_store(source, options.target, denoiser, reading=reading, run=run, request=request)
            _print_result(options.target, cost)
    from dpca.models.denoising.camera import camera_in_words

    group = open_group(options.target)
    sigma, rank, removed = (array_in(group, name)[...] for name in ("sigma", "rank", "removed"))
    varies = sigma[sigma > 0]
    level = f"noise of standard deviation {np.median(varies):#.3g} (median)" if varies.size else "no noise"
    facts = root_facts(group)
    camera = f", {camera_in_words(facts)}" if facts.get("gain") else ""
    if (report := read_report(folder := report_folder(options.target))) is not None:
        say(f"{report['notes'][0]}\nreport  {folder / 'index.html'}")
    found = f"{removed.mean():.1%} of the variance removed (mean), {level}, {rank.mean():.1f} components a cell{camera}"
    conclude(f"'{options.target}': {found}", "explore", options.target)
    return 0


def fill(options: argparse.Namespace) -> int:
    """``dpca fill``."""
    source, reading = given_input(options, None), reading_options(options)
    request = job_request(options, source)
    if not options.dry_run and served(request, options.target) is not None:
        _print_result(options.target, None)
    else:
        from dpca.jobs import fill_store
        from dpca.jobs.denoising.denoise import outline_of
        from dpca.jobs.denoising.fill import filling_model, plan_filling

        model = filling_model(options.components, options.cell, options.missing_value)
        with run_of(options) as run:
            if options.dry_run:
                basis = plan_filling(model, outline_of(source, reading, run), run)
                say(f"a model of {basis.nbytes / 1e6:,.1f} MB; the samples are read once for each pass of the fit")
                return 0
            cost = fill_store(source, options.target, model, reading=reading, run=run, request=request)
            _print_result(options.target, cost)
    facts = root_facts(open_group(options.target))
    error = facts["held_out_rmse"]
    known = "no value was missing" if error is None else f"held-out values are predicted with an error of {error:.3g}"
    left = f", {facts['left_missing']:,} without any value stay missing" if facts["left_missing"] else ""
    say(known)
    filled = f"{facts['filled']:,} values filled, standard error {facts['mean_standard_error']:.3g}{left}"
    conclude(f"'{options.target}': {filled}", "explore", options.target)
    return 0


class _PrintedProgress:
    """Prints the progress of a fit at intervals."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.seconds >= self._next or progress.finished:
            bound = progress.captured_bound
            known = "" if math.isnan(bound) else f", at least {math.floor(bound * 10_000) / 10_000:.4f} of the optimum"
            seen = f"{progress.n_samples_seen:,} of {progress.n_samples:,} samples"
            say(f"{seen}: {progress.captured_variance:.2%} of the variance{known}")
            self._next = progress.seconds + _PAUSE


def _stack(options: argparse.Namespace, variables: Sequence[str] | None = None) -> Stack:
    if variables is not None:
        for name in ("mask", "data_range"):
            if getattr(options, name) is not None:
                raise DataError(
                    f"--{name.replace('_', '-')} is given, but the variables {', '.join(variables)} are not one array: "
                    f"leave it out"
                )
        from dpca.engine.sources.variables import VariableStack

        return VariableStack.of(options.stack, variables)
    if is_zarr(options.stack):
        stack = open_stack(options.stack, data_range=options.data_range)
        if options.mask is None:
            return stack
        from dpca.engine.sources.masked import MaskedStack

        return MaskedStack.of(stack, options.mask)
    require_samples(open_reader(options.stack))
    raise DataError(f"'{options.stack}' is not a stack: make one first, dpca ingest {options.stack} STACK.zarr")


def _print_result(target: str, cost: StageCost | None) -> None:
    """Print the output and its throughput. Without a cost, or with no bytes, print that there was nothing to do."""
    if cost is None or not cost.bytes:
        say(f"nothing to do: '{target}' was made from this input with these settings")
    else:
        rate = readable_size(cost.bytes / max(cost.seconds, 1e-9))
        peak = readable_size(cost.peak_memory)
        say(f"wrote '{target}' in {cost.seconds:.1f} s ({rate}/s, {peak} per process)")


def _quality(scores: str) -> list[str]:
    group = open_group(scores)
    names = [name for name in ("mse", "psnr", "ssim", NOISE_SHARE) if name in group]
    lines = [f"mean {name.replace('_', ' ')} {float(array_in(group, name)[...].mean()):.6g}" for name in names]
    if (variables := root_facts(group).get(VARIABLES)) is not None:
        means = array_in(group, "variable_mse")[...].mean(axis=0).tolist()
        return [f"mean mse of {key} {mean:.6g}" for key, mean in zip(variables, means, strict=True)]
    return [*lines, f"({range_words(root_facts(group)['data_range'])})"]
