"""Subcommands that need no model. Each passes its options to one function and prints the result."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import ChainMap
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any

import zarr

from dpca.choices import COMPRESSED
from dpca.cli.arguments import reading_options
from dpca.cli.running import conclude, say
from dpca.cli.work import run_of, shown_progress
from dpca.plots.numbers import counted
from dpca.report.words import times_smaller
from dpca.storage import DataError, Stack, create_synthetic, ingest, open_stack, verify
from dpca.storage.arrays.reading import open_group, open_node, root_facts
from dpca.storage.disk import folder_bytes, readable_size
from dpca.storage.input import open_input
from dpca.storage.integrity.manifest import METADATA
from dpca.storage.progress import bar_progress
from dpca.storage.ranges import range_words
from dpca.storage.readers import Reader, open_reader
from dpca.storage.readers.arrays.trajectory import selected_atoms
from dpca.storage.readers.arrays.zarr_array import ZarrReader
from dpca.storage.readers.masked import MaskedReader
from dpca.storage.remote.objects import place_of
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions, require_samples
from dpca.storage.transaction.outputs import OutputFile


def ingest_stack(options: argparse.Namespace) -> int:
    """``dpca ingest``."""
    # Checked before a cluster starts, because that takes seconds.
    if options.topology is None and options.select is not None:
        raise DataError(f"--select is {options.select!r} and requires a topology: give --topology")
    source = options.source
    if options.topology is not None:
        source = selected_atoms(options.topology, options.source, options.select)
    reader = open_reader(source, key=options.key, axes=options.axes)
    require_samples(reader)
    if options.mask is not None:
        reader = MaskedReader(reader, options.mask)
    with run_of(options) as run:
        stack = ingest(
            reader,
            options.target,
            cell_shape=options.cell,
            axes=options.axes,
            reading=reading_options(options),
            run=run,
        )
    shape = " x ".join(map(str, stack.sample_shape))
    if stack.rejected:
        say(f"{len(stack.rejected):,} skipped, the first: {stack.rejected[0][0]}: {stack.rejected[0][1]}")
    conclude(f"'{options.target}' has {stack.n_samples:,} samples of {shape} {stack.dtype}", "explore", options.target)
    return 0


def make_synthetic(options: argparse.Namespace) -> int:
    """``dpca synthetic``."""
    parameters = dict(ChainMap(*reversed(options.parameter)))
    if stated := {"path", "model", "n_samples", "sample_shape", "seed", "overwrite"} & parameters.keys():
        raise DataError(
            f"--parameter {min(stated)} is not a model parameter: use its own option, see dpca synthetic --help"
        )
    stack = create_synthetic(
        options.path,
        options.model,
        n_samples=options.samples,
        sample_shape=options.shape,
        seed=options.seed,
        overwrite=options.overwrite,
        **parameters,
    )
    shape = " x ".join(map(str, stack.sample_shape))
    size = readable_size(stack.nbytes)
    what = f"{stack.n_samples:,} samples of {shape} {stack.dtype} ({size}) when they are read"
    conclude(f"'{options.path}' computes {what}", "explore", options.path)
    return 0


def info(options: argparse.Namespace) -> int:
    """``dpca info``."""
    with closing(bar_progress("read", 1, "source")) as stage:  # in a terminal: the imports of readers take seconds
        facts = _facts(options.path)
        stage.advance(1)
    if options.json:
        say(json.dumps(facts, indent=2))
        return 0
    facts.pop("manifest", None)  # the checksum of every file is for programs
    _print_facts(facts)
    on_disk, decoded = facts.get("bytes_on_disk"), facts.get("bytes_decoded")
    if on_disk is None:
        conclude(f"'{options.path}' can be read", "compress", options.path, "OUTPUT.zarr")
        return 0
    smaller = f", {times_smaller(decoded / on_disk)} than decoded" if decoded else ""
    after = ("export", options.path, "out/") if facts["kind"] == COMPRESSED else ("verify", options.path)
    conclude(f"'{options.path}': {readable_size(on_disk)}{smaller}", *after)
    return 0


def describe_system(options: argparse.Namespace) -> int:
    """``dpca system``."""
    from dpca.jobs.plans.system import system_facts  # imported here, because its libraries take seconds

    facts = system_facts()
    if options.json:
        say(json.dumps(facts, indent=2))
        return 0
    _print_facts(facts)
    exact, floats = facts["integer_products"], facts["float32_products"]
    how = f"{exact / floats:.1f} times as fast as float32" if exact else "as fast as float32: there is no instruction"
    conclude(f"bytes are multiplied {how}", "plan", "--help")
    return 0


def verify_store(options: argparse.Namespace) -> int:
    """``dpca verify``."""
    given, whole = None if options.stack is None else _originals(options), "every file is intact"
    with run_of(options) as run:
        problems = verify(options.path, run=run)
        if not problems and (_stated(options.path) or {}).get("kind") == COMPRESSED:
            # Imported here, because its libraries take seconds.
            from dpca.jobs.base.input_stack import temporary_stack
            from dpca.jobs.compressed.verify_quality import verify_quality

            how = nullcontext() if given is None else temporary_stack(given, _reading(options, options.path), run)
            with how as stack:
                # The workers of a cluster need not see a temporary folder.
                here = run if stack is given else run.here()
                problems = verify_quality(options.path, stack, sample=options.sample, run=here)
            whole += ", and quality and error bounds hold" if given else "; give --stack to measure quality and bounds"
        elif not problems and given is not None:
            raise DataError(f"'{options.path}' is not a compressed store, and --stack requires one: leave out --stack")
    for problem in problems:
        say(problem)
    if problems:
        say(f"'{options.path}': {counted(len(problems), 'problem')}")
        return 1
    conclude(f"'{options.path}': {whole}", "info", options.path)
    return 0


def compare(options: argparse.Namespace) -> int:
    """``dpca compare``."""
    # Imported here, because its libraries take seconds.
    from dpca.jobs.base.input_stack import temporary_stack
    from dpca.jobs.compressed.compare import compare_store

    given, plot = _originals(options), None
    if options.plot is not None:
        from dpca.plots.png import is_dpca_png, png
        from dpca.plots.rates import rate_chart

        plot = OutputFile(options.plot, "plot", is_dpca_png, given, options.store)
    run = Run(progress=bar_progress) if options.json else Run(progress=shown_progress, say=say)
    with temporary_stack(given, _reading(options, options.store), run) as stack:
        found = compare_store(options.store, stack, sample=options.sample)
    if plot is not None:
        others: dict[str, list[tuple[float, float]]] = {}
        for point in found.others:
            others.setdefault(point.codec, []).append((point.bytes, point.psnr))
        chart = rate_chart((found.store.bytes, found.store.psnr), others, found.data_range)
        plot.write(png(chart))
    if options.json:
        for point in (found.store, *found.others):
            psnr = point.psnr if math.isfinite(point.psnr) else None
            say(json.dumps({**vars(point), "psnr": psnr}))
        return 0
    reached = f"{_decibels(found.store.psnr)} ({range_words(found.data_range)})"
    say(f"{'this store':<28} {found.store.bytes:>12,.0f} bytes a sample   {reached}")
    finest = {point.codec: point.psnr for point in found.others}
    for name, size in found.at_equal_error().items():
        if size is None:
            say(f"{name:<28} does not reach {found.store.psnr:.2f} dB")
            continue
        lossless = math.isinf(finest[name]) or " at " in name
        error = _decibels(finest[name]) if lossless else f"at {found.store.psnr:.2f} dB"
        say(f"{name:<28} {size:>12,.0f} bytes a sample   {error}   {size / found.store.bytes:.2f} x this store")
    for name, why in found.missing.items():
        say(f"{name} {why}")
    sizes = [size for size in found.at_equal_error().values() if size is not None]
    beside = "no other codec reaches its error"
    if sizes:
        beside = f"{times_smaller(min(sizes) / found.store.bytes)} than the smallest of {counted(len(sizes), 'codec')}"
    conclude(f"'{options.store}': {beside}", "export", options.store, "out/")
    return 0


def _originals(options: argparse.Namespace) -> Stack | Reader:
    """Open the samples that a compressed store was made from."""
    given = {name: getattr(options, name) for name in ("key", "axes", "data_range", "mask")}
    return open_input(options.stack, **given)


def _reading(options: argparse.Namespace, store: str) -> ReadOptions:
    """Return how samples are read to compare them with a compressed store."""
    from dpca.models import open_compressed  # imported here, because it takes seconds

    return replace(reading_options(options), gaps=open_compressed(store).has_gaps)


def _decibels(psnr: float) -> str:
    return "lossless" if math.isinf(psnr) else f"{psnr:.2f} dB"


def _facts(path: str) -> dict[str, Any]:
    """Return the metadata of a store, or of a source that could be ingested."""
    stated = _stated(path)
    if stated is not None and stated.get("kind") == COMPRESSED:
        return _compressed(path)
    if stated is not None and stated.get("kind") != "stack":
        group = open_group(path)
        arrays = {name: f"{tuple(a.shape)} {a.dtype}" for name, a in sorted(group.arrays())}
        return {**stated, "arrays": arrays, "bytes_on_disk": folder_bytes(path)}
    reader = None if stated is not None else open_reader(path)
    if reader is None or (isinstance(reader, ZarrReader) and not reader.stack.moved):
        stack = open_stack(path) if reader is None else reader.stack
        return {
            "kind": "stack" if reader is None or not reader.decodes else "source: zarr, decoded by ingest",
            "samples": stack.n_samples,
            "sample_shape": list(stack.sample_shape),
            "dtype": str(stack.dtype),
            "axes": list(stack.axes),
            "data_range": stack.data_range,
            "chunks": list(stack.samples.chunks),
            "shards": list(stack.samples.shards) if stack.samples.shards else None,
            "bytes_decoded": stack.nbytes,
            "bytes_on_disk": folder_bytes(path),
            "source": stack.source,
            "rejected": [list(entry) for entry in stack.rejected],
            "fingerprint": stack.fingerprint,
        }
    facts: dict[str, Any] = {"kind": f"source: {reader.kind}", "samples": len(reader), "ignored_files": reader.ignored}
    if len(reader):
        facts["first"], facts["last"] = reader.names[0], reader.names[len(reader) - 1]
    if not reader.encoded:
        facts |= {"sample_shape": list(reader.sample_shape), "dtype": str(reader.dtype)}
    return facts


def _compressed(path: str) -> dict[str, Any]:
    from dpca.models import open_compressed  # imported here, because it takes seconds

    store, on_disk = open_compressed(path), folder_bytes(path)
    goal, kept = store.facts["goal"], ("source", "model", "made_with", "fingerprint")
    return {
        "kind": COMPRESSED,
        "samples": len(store),
        "sample_shape": list(store.shape[1:]),
        "dtype": str(store.dtype),
        "axes": list(store.axes),
        "data_range": store.facts["data_range"],
        "goal": {goal["name"]: goal["value"], **({"every_sample": True} if goal.get("every_sample") else {})},
        "cell_shape": store.facts["cell_shape"],
        "overlap": store.facts["overlap"],
        "scores_of_a_sample": len(store.codec.cell),
        "bytes_decoded": store.nbytes,
        "bytes_on_disk": on_disk,
        "bytes_a_sample": round(on_disk / len(store), 1),
        "ratio": round(store.nbytes / on_disk, 2),
        **{name: _spread(values) for name, values in store.quality.items()},
        **{name: store.facts[name] for name in kept if name in store.facts},
    }


def _spread(values: Any) -> dict[str, float | str]:
    ordered = sorted(values.tolist())
    at = {"lowest": 0, "5 %": len(ordered) // 20, "median": len(ordered) // 2, "highest": -1}
    found = {"mean": sum(ordered) / len(ordered), **{name: ordered[i] for name, i in at.items()}}
    # JSON has no infinity, the PSNR of an exact sample.
    return {name: float(f"{value:.4g}") if math.isfinite(value) else str(value) for name, value in found.items()}


def _stated(path: str) -> dict[str, Any] | None:
    if not place_of(os.path.join(path, METADATA)).is_file():
        return None
    node = open_node(path)
    return root_facts(node) or None if isinstance(node, zarr.Group) else None


def _print_facts(facts: dict[str, Any]) -> None:
    width = max(map(len, facts))
    for key, value in facts.items():
        say(f"{key:<{width}}  {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_text(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return " x ".join(map(str, value)) if all(isinstance(v, int) for v in value) else ", ".join(map(_text, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
