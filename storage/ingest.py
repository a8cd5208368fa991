"""Converts a source to a stack store, in parallel and in order; interrupted runs resume, and publication is atomic."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dpca.storage.arrays.arrays import create_array, create_root, kept_layout, write_strings
from dpca.storage.arrays.coordinates import write_coordinates
from dpca.storage.arrays.layout import SHARD_BYTES, Layout, axes_for, choose_layout, count_spatial
from dpca.storage.arrays.reading import open_group, root_facts
from dpca.storage.disk import folder_bytes, require_free_space, writing_errors
from dpca.storage.errors import DataError, PlanError, StoreError
from dpca.storage.images import DecodeOptions
from dpca.storage.integrity.manifest import METADATA
from dpca.storage.readers import Reader, Source, open_reader
from dpca.storage.remote.network import use_storage_options
from dpca.storage.remote.objects import place_of
from dpca.storage.run import Run
from dpca.storage.stack import STACK_KIND, STACK_VERSION, Stack, open_stack
from dpca.storage.stack_writer import StackWriter
from dpca.storage.survey import ReadOptions, SampleForm, require_samples, survey
from dpca.storage.transaction.job import Job
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

# The compression ratio that is assumed before anything is written: the lowest at which the codec is chosen, and that of
# JPEG files of the highest quality in use.
_SAVES = {"blosc": 1.5, "jpeg": 3.0}
_LABEL_CHUNK = 65536
# Memory of a task in multiples of a shard: the values, the encoded chunks, and their concatenation (measured with the
# codec: 4.0). Raw chunks bypass Zarr and require one, and those of images less.
_SHARD_COPIES = 4
_TASK_OVERHEAD = 24 << 20
# Samples are not divided into shards of fewer bytes.
_LEAST_PART = 1 << 20


def ingest(
    source: Source | Reader,
    target: str | os.PathLike[str],
    *,
    cell_shape: int | Sequence[int] | None = None,
    key: str | None = None,
    axes: Sequence[str] | None = None,
    reading: ReadOptions = ReadOptions(),
    shard_bytes: int | None = None,
    run: Run = Run(),
    storage_options: Mapping[str, Any] | None = None,
) -> Stack:
    """Convert a source to a stack store.

    Parameters
    ----------
    source : path-like, URL, sequence of these, xarray.DataArray or Dataset, or Reader
        See `dpca.storage.readers.open_reader`.
    target : path-like or URL
        Where the complete store appears. Until then it grows in ``<target>.partial``, and the same call resumes an
        interrupted run.
    cell_shape : int or sequence of int, optional
        Cells of a later fit: one length for each spatial axis, or one for all of them. Chunks are aligned with cells.
    key, axes :
        For arrays, see `dpca.storage.readers.open_reader`.
    reading : ReadOptions
        How samples are read: color and size of images, invalid samples, data range, and whether JPEG files are kept.
    shard_bytes : int, optional
        Most bytes of a shard, unless a single sample is larger. The default is 128 MiB. Less memory for a task results
        in smaller shards, too.
    run : Run
        Whether to replace another Zarr store, where the tasks run, and how much memory each may use.
    storage_options : mapping, optional
        Options for source and target in object stores, see `dpca.storage.use_storage_options`.

    Returns
    -------
    Stack
        The opened store. If it already exists with the same source and settings, nothing is written. It keeps the names
        of the axes of the source, and the coordinates along them.

    Raises
    ------
    DataError
        If the source or one of its samples is invalid. The message names the first invalid sample.
    PlanError
        If a shard of one sample exceeds the memory of a task, and the source does not read boxes of samples.
    StoreError
        If the store cannot be written, or it overlaps the source.

    Notes
    -----
    A task reads, decodes and writes one shard of at most 128 MiB: some samples, or a box of one sample. Images, and
    arrays that are not read in boxes, are written in whole samples. Sequential sources (compressed archives
    and arrays) are read by this process, which sends blocks to the tasks.
    """
    use_storage_options(storage_options)
    rules, limits = reading.rules(), reading.limits()
    reader = source if isinstance(source, Reader) else open_reader(source, key=key, axes=axes)
    cells = None if cell_shape is None else _cell_lengths(cell_shape, reader)
    if not reader.encoded and (rules != DecodeOptions() or reading.keep_jpegs):
        raise DataError(
            f"color, crop, resize and keep_jpegs require images, but '{reader.name}' is an array: leave them out"
        )
    settings: list[Any] = [cells, rules.color, rules.crop, rules.resize, None if axes is None else list(axes), limits]
    settings += [name for name in ("gaps", "infinite", "keep_jpegs") if getattr(reading, name)]
    source_hash = reader.fingerprint()  # of all names and sizes
    fingerprint = fingerprint_of(STACK_KIND, STACK_VERSION, source_hash, settings)

    def steps(work: Workspace) -> int:
        require_samples(reader)
        _check_samples(reader, run.task_bytes())
        form = survey(reader, reading)
        layout = kept_layout(work.store, "samples") or _layout(reader, form, cells, run.task_bytes(), shard_bytes)
        needed = _bytes_to_write(work, len(reader), form, layout)
        with writing_errors(target, needed):
            require_free_space(target, needed, f"the stack of '{reader.name}'")
            writer = StackWriter(work, reader, form, layout, stop=reading.stop, run=run)
            writer.write()
            asked = {"cell_shape": cells, "color": rules.color, "crop": rules.crop, "resize": rules.resize}
            _finish(work, reader, form, writer, content_of(reader, reading, axes, source_hash), asked)
        return needed

    def publish(work: Workspace, needed: int) -> None:
        with writing_errors(target, needed):
            work.publish()

    Job(target, STACK_KIND, fingerprint, (reader,), run.overwrite).run(steps, publish)
    stack = open_stack(target)
    if reading.stop and stack.rejected:
        name, reason = stack.rejected[0]
        raise DataError(
            f"'{os.fspath(target)}' exists without {len(stack.rejected):,} rejected samples; the first, '{name}', "
            f'{reason}: accept this with --on-error skip (on_error="skip"), or choose another output'
        )
    return stack


def plan_ingest(
    reader: Reader,
    reading: ReadOptions,
    cells: Callable[[Sequence[str]], tuple[int, ...] | None],
    memory: int | None,
    shard_bytes: int | None = None,
) -> tuple[tuple[int, ...], np.dtype[Any], Layout, tuple[str, ...]]:
    """Return shape, dtype, layout and axes of the stack that `ingest` creates if it rejects no sample.

    Parameters
    ----------
    reader : Reader
        The source. Its first few samples are read.
    reading : ReadOptions
    cells : callable
        Returns the cells, or None, from the names of the axes of a sample.
    memory, shard_bytes : int, optional
        Most bytes that a task may use, and most bytes of a shard.

    Raises
    ------
    DataError
        If the source is invalid.
    PlanError
        If a shard of one sample exceeds ``memory``.
    """
    require_samples(reader)
    _check_samples(reader, memory)
    form = survey(reader, reading)
    lengths = cells(form.axes[1:] if not reader.encoded else ("y", "x"))
    layout = _layout(reader, form, lengths, memory, shard_bytes)
    return (len(reader), *form.sample_shape), form.dtype, layout, form.axes


def _refuse(reader: Reader, need: int, what: str, memory: int) -> PlanError:
    return PlanError(
        f"reading '{reader.name}' and writing a shard of {what} requires {need / 1e6:,.0f} MB, but the memory of a "
        f"task is {memory / 1e6:,.0f} MB: give each worker at least {math.ceil((need - memory) / 1e6):,} MB more"
    )


def _check_samples(reader: Reader, memory: int | None) -> None:
    """Refuse an array whose samples are read whole and exceed the memory, before one is read."""
    need = _SHARD_COPIES * prod(reader.sample_shape) * reader.dtype.itemsize + _TASK_OVERHEAD
    if memory is not None and need > memory and not (reader.encoded or reader.reads_boxes):
        raise _refuse(reader, need, "1 samples", memory)


def task_bytes(reader: Reader, dtype: np.dtype[Any], layout: Layout) -> int:
    """Return the most bytes of memory of a task that writes a shard of this layout."""
    # Encoded images are in memory together with their pixels.
    return (_SHARD_COPIES + reader.encoded) * prod(layout.shards) * dtype.itemsize + _TASK_OVERHEAD


def content_of(
    source: Reader, reading: ReadOptions, axes: Sequence[str] | None = None, source_hash: str | None = None
) -> str:
    """Return a hash of the source and of all settings of `ingest` that determine the samples.

    Cells are not included. They only determine chunks, so a stack for other cells is equally valid. ``source_hash`` is
    the fingerprint of the source, if it was computed before.
    """
    axes = source.axes if axes is None else axes
    rules, limits = reading.rules(), reading.limits() or source.data_range
    settings: list[Any] = [rules.color, rules.crop, rules.resize, None if axes is None else list(axes), limits]
    settings += [name for name in ("gaps", "infinite") if getattr(reading, name)]
    return fingerprint_of(
        STACK_KIND, STACK_VERSION, source.kind, source_hash or source.fingerprint(), len(source), settings
    )


def is_made_of(path: str | os.PathLike[str], content: str, *, stop: bool) -> bool:
    """Return whether a stack store is complete and has the content hash that `content_of` computes.

    Parameters
    ----------
    path : path-like
        Any path, which need not exist.
    content : str
        The expected hash.
    stop : bool
        Whether rejected samples are an error.
    """
    try:
        if not place_of(os.path.join(path, METADATA)).is_file():
            return False
        stack = open_stack(path)
        facts = root_facts(open_group(path))
        return facts.get("content") == content and not (stop and stack.rejected)
    except (DataError, StoreError, OSError, ValueError):
        return False


def _cell_lengths(cell_shape: int | Sequence[int], reader: Reader) -> list[int]:
    if isinstance(cell_shape, Sequence):
        return [int(length) for length in cell_shape]
    axes = ("y", "x") if reader.encoded else reader.axes or axes_for(reader.sample_shape)
    return [int(cell_shape)] * count_spatial(axes)


def _layout(
    reader: Reader, form: SampleForm, cells: Sequence[int] | None, memory: int | None, shard_bytes: int | None
) -> Layout:
    """Return chunks and shards. Shards are halved until a task with one shard fits the memory.

    Shards that are parts of a sample require a source that reads boxes.
    """
    shape, most = (len(reader), *form.sample_shape), shard_bytes or SHARD_BYTES
    part = SHARD_BYTES if reader.reads_boxes else None
    while True:
        try:
            layout = choose_layout(shape, form.dtype.itemsize, form.axes, cells, most, part)
        except ValueError as error:
            raise DataError(str(error)) from error
        layout = layout.of_samples(form.sample_shape) if form.codec == "jpeg" else layout
        need = task_bytes(reader, form.dtype, layout)
        if memory is None or need <= memory:
            return layout
        if layout.rows_per_shard > 1:
            most //= 2
        elif part is not None and part > _LEAST_PART:
            part //= 2
        else:
            boxes = len(layout.boxes(form.sample_shape))
            what = "1 samples" if boxes == 1 else f"one of {boxes:,} boxes of a sample"
            raise _refuse(reader, need, what, memory)


def _bytes_to_write(work: Workspace, n_items: int, form: SampleForm, layout: Layout) -> int:
    whole = layout.stored_values((n_items, *form.sample_shape)) * form.dtype.itemsize
    return max(0, int(whole / _SAVES.get(form.codec, 1)) - folder_bytes(work.store))


def _finish(
    work: Workspace, reader: Reader, form: SampleForm, writer: StackWriter, content: str, settings: Mapping[str, Any]
) -> None:
    """Write names, labels and rejections; a resumed run writes all of them again."""
    low, high = writer.data_range()
    root = create_root(
        work.store,
        kind=STACK_KIND,
        fingerprint=work.fingerprint,
        version=STACK_VERSION,
        axes=list(form.axes),
        data_range=[low, high],
        source={"kind": reader.kind, "name": reader.name, "count": len(reader)},
        settings=settings,
        color=form.color,
        ignored=reader.ignored,
        content=content,
    )
    names = reader.names
    write_strings(root, "name", [names[i] for i in writer.kept.tolist()], form.dims[0])
    if reader.labels is not None:
        _write_labels(root, reader.labels[writer.kept], form.dims[0])
    if form.coordinates is not None:
        write_coordinates(root, form.coordinates.of_samples(writer.kept))
    if writer.rejected:
        rejected = root.require_group("rejected")
        items = sorted(writer.rejected)
        write_strings(rejected, "name", [names[i] for i in items], "item")
        write_strings(rejected, "reason", [writer.rejected[i] for i in items], "item")


def _write_labels(root: zarr.Group, labels: NDArray[Any], dim: str) -> None:
    if labels.dtype.kind not in "buif":
        write_strings(root, "label", [str(label) for label in labels], dim)
        return
    chunk = min(len(labels), _LABEL_CHUNK)
    layout = Layout(chunks=(chunk,), shards=(-(-len(labels) // chunk) * chunk,))
    create_array(root, "label", labels.shape, labels.dtype, layout, (dim,))[:] = labels
