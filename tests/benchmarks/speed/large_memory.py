"""The memory that large samples take, of the memory that is planned: in a fit, and in boxes after it.

    python tests/benchmarks/speed/large_memory.py

6 images of 4,500 x 4,500 bytes, in chunks of 500 x 500: one is 81 MB in floating point. Two threads may use 200 MB
each. Each step is a process of its own; its peak memory is counted from the moment at which the libraries are imported.
A fit may use the tasks and the results of its plan, or components twice and the mean. The other steps may use two
tasks, and the model as it is read from a store. The last three steps read images of which a tenth is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import zarr

from tests.benchmarks.inputs import Inputs
from tests.benchmarks.sides import Line, alone, at_most, ratio_of

_TASK_BYTES, _THREADS = 200 * 10**6, 2
_MODELS = {
    "PCA": "dpca.PCA(2)",
    "CellPCA": "dpca.CellPCA(2, cell_shape=20)",
    "BandPCA": "dpca.BandPCA(2, band_size=400)",
    "PatchPCA": "dpca.PatchPCA(2, patch_shape=4)",
}
_FIT = """
model = {model}.fit(folder + "/x.zarr", run=run{weights})
plan = model.fit_report_.plan
found = 2 * model.components_.nbytes + model.mean_.nbytes
tasks = min(threads, len(plan.groups) * len(plan.segments)) * plan.task_bytes
peak, allowed = above(), tasks + max(plan.caller_bytes, found)
model.save(folder + "/model.zarr", overwrite=True)
"""
_STEPS = {
    "fit with weights": _FIT.replace("{weights}", ", sample_weight=numpy.linspace(0.3, 2, {n})"),
    "fit": _FIT.replace("{weights}", ""),
    "transform": """
loaded().transform(folder + "/x.zarr").to_zarr(folder + "/scores.zarr", overwrite=True)
""",
    "inverse_transform": """
loaded().inverse_transform(folder + "/scores.zarr").to_zarr(folder + "/again.zarr", overwrite=True)
""",
    "reconstruct": """
stack = open_stack(folder + "/x.zarr", data_range=(0, 255))
basis = loaded().basis_
run = Run(threads=threads, memory=task_bytes + basis.nbytes)  # each task counts the model, which threads share
del basis
transform_store(stack, folder + "/model.zarr", folder + "/stored.zarr", reconstruct=True, run=run)
""",
}
_GAP_STEPS = {
    "transform with gaps": """
loaded().transform(folder + "/gaps.zarr").to_zarr(folder + "/scores.zarr", overwrite=True)
""",
    "fill": """
loaded().fill(folder + "/gaps.zarr").to_zarr(folder + "/again.zarr", overwrite=True)
""",
    "reconstruct with gaps": _STEPS["reconstruct"].replace("x.zarr", "gaps.zarr"),
}
# Zeros are missing values. The fit of these models to images with gaps is not measured.
_MARKED = """
dpca.{name}.load(folder + "/model.zarr").set_params(gaps="iterate", missing_value=0).save(
    folder + "/model.zarr", overwrite=True
)
"""
_PROGRAM = """
import sys
import dask, dask.array, numpy, zarr
import dpca
from dpca.jobs import transform_store
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.run import Run
from dpca.storage.stack import open_stack
folder, threads, task_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
{model}.fit(numpy.random.default_rng(0).integers(0, 255, (4, 40, 40)).astype("u1"))  # imports, and compiled loops
{marking}
dask.config.set(scheduler="threads", num_workers=threads)
run, held, peak = Run(threads=threads, memory=task_bytes), [], 0
before = peak_resident_bytes()
def above():
    return peak_resident_bytes() - before
def loaded():
    model = dpca.{name}.load(folder + "/model.zarr")
    labels = getattr(getattr(model.basis_, "partition", None), "labels", None)
    held.append(model.basis_.nbytes + (0 if labels is None else labels.nbytes))
    return model
allowed = 0
{step}
print(peak or above(), allowed or threads * task_bytes + sum(held))
"""


def stack(folder: Path, n: int, side: int) -> None:
    """Write the images: three patterns, and noise."""
    rng, path = np.random.default_rng(0), folder / "x.zarr"
    out = zarr.create_array(path, shape=(n, side, side), chunks=(1, min(side, 500), min(side, 500)), dtype="uint8")
    marked = zarr.create_array(folder / "gaps.zarr", shape=out.shape, chunks=out.chunks, dtype="uint8")
    patterns = rng.standard_normal((3, side, side), np.float32)
    for i, weights in enumerate(rng.normal(size=(n, 3)) * (30, 20, 10)):
        noise = rng.standard_normal((side, side), np.float32)
        image = np.clip(128 + np.tensordot(weights.astype(np.float32), patterns, 1) + noise, 1, 255).astype(np.uint8)
        out[i] = image
        image[i * side // n // 2 :: 10] = 0
        marked[i] = image


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure each step of each estimator once: memory hardly varies."""
    (n, side), folder = (4, 60) if inputs.quick else (6, 4500), inputs.folder / "large"
    folder.mkdir()
    stack(folder, n, side)
    where = f"{n} images of {side} x {side} bytes, {_THREADS} threads of {_TASK_BYTES / 1e6:.0f} MB"
    for name in ["BandPCA"] if inputs.quick else _MODELS:  # each step is a process
        model = _MODELS[name]
        for step, code in {**_STEPS, **(_GAP_STEPS if name in ("PCA", "CellPCA") else {})}.items():
            if step == "fit with weights" and name not in ("CellPCA", "BandPCA"):
                continue
            marking = _MARKED.format(name=name) if step in _GAP_STEPS else ""
            program = _PROGRAM.format(name=name, model=model, step=code.format(model=model, n=n), marking=marking)
            given = [str(folder), str(_THREADS), str(_TASK_BYTES)]
            said = subprocess.run([sys.executable, "-c", program, *given], capture_output=True, text=True, check=True)
            peak, allowed = map(float, said.stdout.splitlines()[-1].split())
            found = ratio_of([{"peak": peak, "planned": allowed}], ["peak"], ["planned"], "bytes")
            yield at_most(1.0, name=f"memory of large samples, {name}, {step}", where=where, n=n, **found)
        for store in ("model", "scores", "again", "stored"):
            shutil.rmtree(folder / f"{store}.zarr", ignore_errors=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
