"""What a fit of cell PCA costs beside what it cannot do without, and where the rest goes.

    python tests/benchmarks/speed/fit_speed.py --source lfw-deepfunneled-00.tar

A fit is held against reading the stack and the integer products X^T X of its cells, already in memory. The parts are
measured on some groups of cells, whose fit is made step by step. "wall s a cell", here of one processor, is what the
thesis states (Alakkari 2020, table 4.3, CPU: .0427, .16 and 7.87).
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpca import CellPCA
from dpca.engine.folds.fold import plan_for
from dpca.engine.folds.plan import FoldPlan, Group
from dpca.engine.sources.source import Source, as_source, batches
from dpca.kernels.algebra import integers
from dpca.kernels.algebra.linalg import gram_lower
from dpca.partition import CellGrid
from dpca.rules.covariance.covariance import CovariancePCA
from dpca.storage import Stack
from dpca.storage.remote.tasks import one_blas_thread
from tests.benchmarks.inputs import Inputs
from tests.benchmarks.sides import Clock, Line, Seconds, alone, at_most, ratio_of

#: Components of each cell, 15 attributes to one score, and the ratio that is asked.
CELLS = {5: (5, 2.0), 10: (20, 1.4), 25: (125, 1.3)}
_GROUPS = 3


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    stack = inputs.stack
    kind = "integers" if integers.kernel() else "floats: no dot-product instruction"
    for cell, (k, asked) in CELLS.items():
        rounds = [_fit(stack, cell, k) for _ in range(inputs.rounds)]
        where = f"stack of {stack.sample_shape}, k = {k}, products of {kind}"
        found = ratio_of(rounds, ["fit"], ["read", "integer products"])
        yield at_most(asked, name=f"fit, cells of {cell}", where=where, n=stack.n_samples, **found)


def _fit(stack: Stack, cell: int, k: int) -> Seconds:
    whole = Clock()
    began = time.perf_counter()
    whole("fit", lambda: CellPCA(k, cell_shape=cell).fit(stack))
    grid = CellGrid(tuple(stack.sample_shape), (cell, cell))
    wall = {"wall s a cell": (time.perf_counter() - began) / grid.n_parts}
    return whole.seconds | bound(stack, cell, k) | wall


def bound(stack: Stack, cell: int, k: int) -> Seconds:
    """Return the processor seconds of the parts of a fit; "read" and "integer products" it cannot do without."""
    clock, source, rule = Clock(), as_source(stack), CovariancePCA(k)
    grid = CellGrid(tuple(stack.sample_shape), (cell, cell))
    plan = plan_for(rule, source, grid)
    some = plan.groups[:: max(1, len(plan.groups) // _GROUPS)]
    with one_blas_thread():
        for group in some:
            _fit_group(clock, source, grid, rule, plan, group)
    # Sizes of groups differ where cells do not divide the sample.
    share = sum(grid.n_features(i) for group in some for i in group.partitions) / np.prod(stack.sample_shape)
    return {name: float(seconds / share) for name, seconds in clock.seconds.items()}


def _fit_group(clock: Clock, source: Source, grid: CellGrid, rule: CovariancePCA, plan: FoldPlan, group: Group) -> None:
    """Fit some cells step by step; the products, which are a part of the updates, are made once more alone."""
    members, origin = group.partitions, tuple(start for start, _ in group.region)
    buffer = np.empty(plan.batch_rows * sum(map(grid.n_features, members)), source.dtype)
    states = [rule.init(grid.n_features(i), source.dtype) for i in members]
    reading = (batches(source, segment, group.region, plan.batch_rows) for segment in plan.segments)
    coming = itertools.chain.from_iterable(reading)
    while True:
        # The thread that reads ahead works on while this one waits for it.
        _, batch = clock("read", lambda: next(coming, (0, None)))
        if batch is None:
            break
        clock("read", lambda: time.sleep(0.05))
        parts = clock("split", lambda b=batch: grid.split(b, members, origin, buffer))
        before = clock.seconds.get("integer products", 0.0)
        clock("integer products", lambda p=parts: [_product(part) for part in p])
        began = time.process_time()
        states = [rule.update(state, part) for state, part in zip(states, parts, strict=True)]
        rest = time.process_time() - began - (clock.seconds["integer products"] - before)
        clock.seconds["adding up"] = clock.seconds.get("adding up", 0.0) + rest
    clock("eigenproblems", lambda: [rule.finish(state) for state in states])


def _product(part: Any) -> None:
    d = part.shape[1]
    if kernel := integers.kernel():
        kernel.add_gram(part, np.zeros((d, d)), np.zeros(d))
    else:
        gram_lower("product", part.astype(np.float32))


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
