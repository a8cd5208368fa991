"""Compiled loops over pixels and scores, which would need up to dozens of passes in numpy.

Import this module only in functions that need it; see `dpca.kernels.compiled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.kernels.compiled import compiled, reordered

# Number of partial sums: the processor adds several at once, always in the same order.
_LANES = 64
# Values of a line that are filtered together: the lines of a zone stay in the fastest cache.
_LINE = 256
# Samples that are transposed together: their values fill a cache line.
_SAMPLES = 16
# Columns of some rows that stay in the cache of a core.
_SHORT = 1024
# Runs that are multiplied together: they and their products stay in the fastest cache.
_RUNS = 128


@compiled
def squared_distance(x: Array, y: Array, unit: float) -> float:
    """Return the sum of ((x - y) / unit)^2 of arrays (n,), in float64."""
    sums = np.zeros(_LANES)
    for start in range(0, len(x), _LANES):
        a, b = x[start : start + _LANES], y[start : start + _LANES]
        for i in range(len(a)):
            difference = (np.float64(a[i]) - np.float64(b[i])) / unit
            sums[i] += difference * difference
    return float(sums.sum())


# Each loop is a function of its own, because the compiler then knows that its arrays do not overlap.


@compiled
def sums_and_differences(x: Array, y: Array, unit: Any, center: Any, p: Array, m: Array, pp: Array, mm: Array) -> None:
    """Set p = x + y - center, m = x - y and their squares, with x and y divided by ``unit`` in the dtype of ``p``."""
    kind = p.dtype.type
    for i in range(len(x)):
        a, b = kind(x[i]) / unit, kind(y[i]) / unit
        p[i] = (a + b) - center
        m[i] = a - b
    for i in range(len(x)):
        pp[i] = p[i] * p[i]
        mm[i] = m[i] * m[i]


@compiled
def window_sum(values: Array, stride: int, out: Array) -> None:
    """Sum seven values from each position on, ``stride`` apart."""
    n = len(out)
    # Slices, because possibly negative indices keep the compiler from using vector instructions.
    a, b, c = values[:n], values[stride : stride + n], values[2 * stride : 2 * stride + n]
    d, e = values[3 * stride : 3 * stride + n], values[4 * stride : 4 * stride + n]
    f, g = values[5 * stride : 5 * stride + n], values[6 * stride : 6 * stride + n]
    for i in range(n):
        out[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + g[i])


@compiled
def similarities(
    p: Array, m: Array, pp: Array, mm: Array, c1: Any, c2: Any, share: Any, center: Any, out: Array
) -> None:
    """Compute the structural similarity from the window sums of the results of `sums_and_differences`.

    ``share`` is one over the number of pixels of a window. For c1 and c2 see `dpca.kernels.quality.ssim_per_sample`.
    """
    for i in range(len(out)):
        mean_p, mean_m = p[i] * share, m[i] * share
        var_p, var_m = pp[i] * share - mean_p * mean_p, mm[i] * share - mean_m * mean_m
        mean_p += center
        a, b = mean_p * mean_p, mean_m * mean_m
        out[i] = ((a - b + c1) * (var_p - var_m + c2)) / ((a + b + c1) * (var_p + var_m + c2))


@compiled
def add_rows(values: Array, weights: Array, totals: Array) -> None:
    """Add every row of ``values`` times ``weights`` to ``totals``. The last row may be shorter."""
    for start in range(0, len(values), len(totals)):
        row = values[start : start + len(totals)]
        for i in range(len(row)):
            totals[i] += np.float64(row[i]) * weights[i]


@compiled
def add_multiples(weights: Array, rows: Array, totals: Array) -> None:
    """Add weights (k, n) @ rows (n, d) to totals (k, d), row by row.

    The order of additions does not depend on the number of rows or columns in one call, unlike that of BLAS.
    """
    for start in range(0, rows.shape[1], _SHORT):
        for i in range(len(rows)):
            row = rows[i, start : start + _SHORT]
            for j in range(len(weights)):
                weight, total = weights[j, i], totals[j, start : start + _SHORT]
                for x in range(len(row)):
                    total[x] += weight * row[x]


@compiled
def weigh_samples(rows: Array, begin: int, weights: Array, sums: Array, image: Array, mean: Array) -> None:
    """Compute weights @ (rows - mean) for some columns of rows (n, d): those of ``mean``, from number ``begin`` on.

    Sums are added as `add_multiples` adds them, of samples minus the first one, and corrected by the mean at the end.

    Parameters
    ----------
    rows : array (n, d), contiguous
    begin : int
    weights : array (k, n), float64
    sums : array (k,), float64
        Of the weights of each row.
    image, mean : array (k, c) and (c,), float64
        Overwritten.
    """
    n, line = len(rows), np.empty(_SHORT)
    for start in range(0, len(mean), _SHORT):
        total = mean[start : start + _SHORT]
        columns = slice(begin + start, begin + start + len(total))
        first = rows[0, columns]
        total[:] = 0
        image[:, start : start + _SHORT] = 0
        for i in range(n):
            row = rows[i, columns]
            for x in range(len(row)):
                line[x] = np.float64(row[x]) - np.float64(first[x])
            for x in range(len(total)):
                total[x] += line[x]
            for j in range(len(weights)):
                weight, out = weights[j, i], image[j, start : start + _SHORT]
                for x in range(len(out)):
                    out[x] += weight * line[x]
        for x in range(len(total)):
            total[x] /= n
        for j in range(len(weights)):
            weight, out = sums[j], image[j, start : start + _SHORT]
            for x in range(len(out)):
                out[x] -= weight * total[x]
        for x in range(len(total)):
            total[x] += np.float64(first[x])


@compiled
def add_and_round(values: Array, mean: Array, low: Any, high: Any, out: Array) -> None:
    """Add means (m, d) to values (m, n, d), round, and clip to ``low`` and ``high``."""
    for i in range(len(values)):
        added = mean[i]
        for s in range(values.shape[1]):
            line, made = values[i, s], out[i, s]
            for j in range(len(added)):
                made[j] = min(max(np.rint(line[j] + added[j]), low), high)


@compiled
def filter_zones(values: Array, n: int, zones: Array, turning: Array) -> None:
    """Filter zones across borders of cells in place, for n samples.

    Each half of a zone has as many lines of values as ``turning`` (half, half) has rows. The filter multiplies the
    differences of mirrored lines by ``turning``. It adds the product to the lower half and subtracts it from the upper
    half.

    Parameters
    ----------
    values : array (n_values * n,)
    zones : array (n_zones, 6) of integers
        Start of the lower half and of the upper half, number of repeats of the zone, distance of the repeats in the
        lower half and in the upper half, and length of a line. All are counted in values of one sample.
    """
    half = len(turning)
    odd, turned = np.empty((half, _LINE), values.dtype), np.empty(_LINE, values.dtype)
    for z in range(len(zones)):
        length = zones[z, 5] * n
        for repeat in range(zones[z, 2]):
            low, high = (zones[z, 0] + repeat * zones[z, 3]) * n, (zones[z, 1] + repeat * zones[z, 4]) * n
            for start in range(0, length, _LINE):
                width = min(_LINE, length - start)
                for j in range(half):
                    at, mirrored = high + j * length + start, low + (half - 1 - j) * length + start
                    a, b, p = values[mirrored : mirrored + width], values[at : at + width], odd[j]
                    for i in range(width):
                        p[i] = a[i] - b[i]
                for j in range(half):
                    at, mirrored = high + j * length + start, low + (half - 1 - j) * length + start
                    a, b, p, f = values[mirrored : mirrored + width], values[at : at + width], odd[0], turning[j, 0]
                    for i in range(width):
                        turned[i] = f * p[i]
                    # Four at a time need a third of the loads and stores.
                    k = 1
                    while k + 3 < half:
                        p, q, r, s = odd[k], odd[k + 1], odd[k + 2], odd[k + 3]
                        f, g, h, e = turning[j, k], turning[j, k + 1], turning[j, k + 2], turning[j, k + 3]
                        for i in range(width):
                            turned[i] += (f * p[i] + g * q[i]) + (h * r[i] + e * s[i])
                        k += 4
                    while k < half:
                        p, f = odd[k], turning[j, k]
                        for i in range(width):
                            turned[i] += f * p[i]
                        k += 1
                    for i in range(width):
                        a[i] += turned[i]
                        b[i] -= turned[i]


@compiled
def add_components(codes: Array, first: int, rows: Array, component: Array, basis: Array, values: Array) -> None:
    """Set values (n_values, n) to sums of components times codes. Components are rows of the basis (rank, n_values).

    Zero codes are skipped; most codes are zero. The result of a sample does not depend on the other samples.

    Parameters
    ----------
    codes : array (n_positions, n_samples) of numbers
        Only samples from ``first`` on are used.
    rows, component : array (n_rows,) of integers
        Positions of the codes, and the component of each.
    """
    n, size = values.shape[1], basis.shape[1]
    totals = np.empty((min(_SAMPLES, n), size), values.dtype)
    used, factors = np.zeros(len(rows) + 3, np.int64), np.zeros(len(rows) + 3, values.dtype)
    for start in range(0, n, _SAMPLES):
        stop = min(start + _SAMPLES, n)
        for s in range(start, stop):
            count = 0
            for r in range(len(rows)):
                code = codes[rows[r], first + s]
                used[count], factors[count] = component[r], code
                count += code != 0
            factors[count : count + 3] = 0
            total = totals[s - start]
            total[:] = 0
            # Four at a time need a third of the loads and stores.
            for j in range(0, count, 4):
                a, b, c, d = basis[used[j]], basis[used[j + 1]], basis[used[j + 2]], basis[used[j + 3]]
                p, q, u, v = factors[j], factors[j + 1], factors[j + 2], factors[j + 3]
                for x in range(size):
                    total[x] += (p * a[x] + q * b[x]) + (u * c[x] + v * d[x])
        # Several samples at a time, because single values would each touch another cache line.
        for x in range(size):
            line = values[x, start:stop]
            for i in range(len(line)):
                line[i] = totals[i, x]


@compiled
def transform_runs(values: Array, matrix: Array, out: Array) -> None:
    """Set ``out`` (n, n_runs, p) to the products of each run of values (n, m, n_runs), numbers, with a matrix (m, p).

    The order of additions is fixed, unlike in BLAS. The result of a run does not depend on the other runs or on the
    processor. ``m`` is a multiple of 4. Four rows of the matrix are skipped if all values that they multiply are zero.
    """
    kind, (m, p), (n, _, n_runs) = out.dtype.type, matrix.shape, values.shape
    columns, sums = np.empty((m, _RUNS), out.dtype), np.empty((p, _RUNS), out.dtype)
    used, high = np.zeros(m // 4, np.int64), max(1, _RUNS // max(1, n_runs))
    for first in range(0, n, high):
        for begin in range(0, n_runs, _RUNS):
            here, made = values[first : first + high, :, begin : begin + _RUNS], out[first : first + high, begin:]
            wide, count = here.shape[2], 0
            size = len(here) * wide
            for four in range(0, m, 4):
                is_used = False
                for j in range(four, four + 4):
                    for i in range(len(here)):
                        line, column = here[i, j], columns[j, i * wide : (i + 1) * wide]
                        for r in range(wide):
                            column[r] = kind(line[r])
                            is_used |= line[r] != 0
                used[count] = four
                count += is_used
            for x in range(p):
                total = sums[x, :size]
                total[:] = 0
                for j in used[:count]:
                    a, b, c, d = columns[j, :size], columns[j + 1, :size], columns[j + 2, :size], columns[j + 3, :size]
                    e, f, g, h = matrix[j, x], matrix[j + 1, x], matrix[j + 2, x], matrix[j + 3, x]
                    for i in range(size):
                        total[i] += (e * a[i] + f * b[i]) + (g * c[i] + h * d[i])
            for i in range(len(here)):
                for r in range(wide):
                    line = made[i, r]
                    for x in range(p):
                        line[x] = sums[x, i * wide + r]


@compiled
def _rows(run: Array) -> int:
    rows = 1
    for length in run[3 : (len(run) + 3) // 2]:
        rows *= length
    return rows


@compiled
def _place(run: Array, row: int, strides: Array) -> tuple[int, int]:
    """Return the offset of a row of a run in the values, and in the samples."""
    at, to, left = run[0], run[1], row
    for axis in range(len(strides) - 1, -1, -1):
        i = left % run[3 + axis]
        left //= run[3 + axis]
        at += i * run[3 + len(strides) + axis]
        to += i * strides[axis]
    return at, to


@compiled
def gather_runs(samples: Array, runs: Array, strides: Array, mean: Array, values: Array) -> None:
    """Copy runs of samples (n, size), minus the mean (size,), into values (n_values, n).

    Parameters
    ----------
    runs : array (n_runs, 3 + 2 * n_axes) of integers
        For each box: its start in the values and in the samples, the number of contiguous values, the lengths of its
        outer axes, and the distances of neighbors along these axes in the values.
    strides : array (n_axes,) of integers
        Distances of neighbors along each outer axis, in the samples.
    """
    kind = values.dtype.type
    for run in runs:
        count = run[2]
        for row in range(_rows(run)):
            at, to = _place(run, row, strides)
            subtracted = mean[to : to + count]
            for s in range(len(samples)):
                line = samples[s, to : to + count]
                for i in range(count):
                    values[at + i, s] = kind(line[i]) - subtracted[i]


@compiled
def scatter_runs(
    values: Array, runs: Array, strides: Array, mean: Array, rounds: bool, low: Any, high: Any, out: Array
) -> None:
    """Copy values (n_values, n) plus the mean (size,) into runs of samples (n, size), the inverse of `gather_runs`.

    If ``rounds`` is true, values are rounded and clipped to ``low`` and ``high``.
    """
    n = values.shape[1]
    for run in runs:
        count = run[2]
        tile = np.empty((count, n), out.dtype)
        for row in range(_rows(run)):
            at, to = _place(run, row, strides)
            for i in range(count):
                line, added, made = values[at + i], mean[to + i], tile[i]
                if rounds:
                    for s in range(n):
                        made[s] = min(max(np.rint(line[s] + added), low), high)
                else:
                    for s in range(n):
                        made[s] = line[s] + added
            for s in range(n):
                line = out[s, to : to + count]
                for i in range(count):
                    line[i] = tile[i, s]


@reordered
def measure_rows(
    scores: Array, step: Any, rounding: Any, counted: int, spreads: Array, power: Array, saved: Array, bits: Array
) -> None:
    """Measure the rate of rows of scores (n_rows, n) in units of the step, see `dpca.codec.rate.Rows`.

    Codes beyond ``counted`` cost two more bits each time they double. ``spreads`` is m log2 m for m = 0 ... n.
    """
    kind = scores.dtype.type
    counts, n = np.zeros(2 * counted + 1, np.int64), scores.shape[1]
    values, codes = np.empty(n, scores.dtype), np.empty(n, scores.dtype)
    for r in range(len(scores)):
        line, most = scores[r], kind(0)
        for i in range(n):
            values[i] = value = line[i] / step
            codes[i] = np.trunc(value + np.copysign(kind(rounding), value))
        # A loop of its own, because vector instructions then compute it.
        square, gain = 0.0, 0.0
        for i in range(n):
            value, code = np.float64(values[i]), np.float64(codes[i])
            square += value * value
            gain += code * (2 * value - code)
            most = max(most, abs(codes[i]))
        power[r], saved[r] = square, gain
        if not most > 0:
            continue
        reach = int(min(most, kind(counted)))
        counts[counted - reach : counted + reach + 1] = 0
        for i in range(n):
            code = codes[i]
            if abs(code) > counted:
                bits[r] += 2 * np.log2(abs(np.float64(code)) / counted)
                code = min(max(code, kind(-counted)), kind(counted))
            counts[int(code) + counted] += 1
        bits[r] += spreads[n]
        for i in range(counted - reach, counted + reach + 1):
            bits[r] -= spreads[counts[i]]
