"""Exact products of 8-bit and 16-bit integers by the dot-product instructions of a processor.

::

    samples of bytes     words of 4 samples         a tile of X^T X
    x x x x ... (n, d)   in panels of columns    rows |  sums of 32 bits, which stay
    x x x x          ->  [panel][n / 4][columns] -> r |  in registers over all n samples
    x x x x                                           |______ columns

Each instruction adds 4 products of bytes to each of 4, 8 or 16 sums of 32 bits. One packed copy of the samples serves
as both factors. Import this module only in functions that need it; see `dpca.kernels.compiled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen, config
from numba.extending import intrinsic

from dpca.kernels.algebra.linalg import scratch
from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.compiled import compiled

#: Samples of one product. Their panels stay in the second cache. Sums of products of two signed bytes over them stay
#: below 2^26, and those of 32 bits wrap around without harm on the way.
MOST_ROWS = 4096
#: Largest magnitude of `WideColumns`, whose low byte is signed.
MOST_WIDE = 32639
#: Rows of a Gram matrix: a multiple of the columns of every panel.
GROUP = 192
# Bits of each of 4 bytes that are flipped to subtract 128 from it.
_TOP_BITS = 0x80808080


class Instruction(NamedTuple):
    """A dot-product instruction of a family of processors, and the tile that fills its registers."""

    feature: str
    """LLVM's name of the processor's feature."""
    name: str
    """LLVM's name of the instruction. It takes sums (lanes,), and two operands of 4 x lanes bytes."""
    lanes: int
    """Sums of 32 bits in a register."""
    rows: int
    """Rows of a tile: a divisor of the columns, and even."""
    vectors: int
    """Registers in a row of a tile."""
    of_bytes: bool
    """Whether the operands are vectors of bytes. Else they are vectors of 32 bits."""
    unsigned: bool
    """Whether the bytes of the first operand are unsigned."""

    @property
    def columns(self) -> int:
        """Columns of a tile and of a panel."""
        return self.lanes * self.vectors


# A tile of 24 sums and 3 operands fits 32 registers, and one of 12 and 3 fits 16. Of the shapes that fit, these load
# the least for each instruction, and divide panels into whole tiles.
INSTRUCTIONS = (
    Instruction("avx512vnni", "llvm.x86.avx512.vpdpbusd.512", 16, 8, 3, False, True),
    Instruction("avxvnni", "llvm.x86.avx512.vpdpbusd.256", 8, 4, 3, False, True),
    Instruction("dotprod", "llvm.aarch64.neon.sdot.v4i32.v16i8", 4, 6, 3, True, False),
)


def usable(features: str) -> Instruction | None:
    """Return the widest instruction that a processor with these features has, in LLVM's notation, or None."""
    present = features.split(",")
    return next((one for one in INSTRUCTIONS if f"+{one.feature}" in present), None)


_FEATURES = getattr(config, "CPU_FEATURES", None) or codegen.get_host_cpu_features()
#: The instruction of this processor, or None; numba without its compiler cannot use one.
INSTRUCTION = None if getattr(config, "DISABLE_JIT", False) else usable(_FEATURES)
_ROWS, _COLUMNS = (INSTRUCTION.rows, INSTRUCTION.columns) if INSTRUCTION else (1, 1)
_UNSIGNED = INSTRUCTION is not None and INSTRUCTION.unsigned


def tile_of(instruction: Instruction) -> Any:
    """Return a function for compiled code that computes a tile of sums.

    It has the arguments (packed, i, j, n, start, tile): ``tile`` (rows, columns) becomes ``start`` (rows,) plus the sum
    over n words of the products of word i + k columns + r of ``packed``, which is signed, and word j + k columns + c.
    """
    i32, i64 = ir.IntType(32), ir.IntType(64)
    vector = ir.VectorType(i32, instruction.lanes)
    operand = ir.VectorType(ir.IntType(8), 4 * instruction.lanes) if instruction.of_bytes else vector
    places = [(r, v) for r in range(instruction.rows) for v in range(instruction.vectors)]

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = [
            builder.bitcast(context.make_array(kind)(context, builder, value).data, i32.as_pointer())
            if isinstance(kind, types.Array)
            else value
            for kind, value in zip(signature.args, args, strict=True)
        ]
        packed, i, j, n, start, tile = data
        kind = ir.FunctionType(vector, [vector, operand, operand])
        multiply_add = cgutils.get_or_insert_function(builder.module, kind, instruction.name)

        def at(pointer: Any, *offsets: Any) -> Any:
            for offset in offsets:
                pointer = builder.gep(pointer, [i64(offset) if isinstance(offset, int) else offset])
            return pointer

        def repeated(value: Any) -> Any:
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, i32(0))
            return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(i32, instruction.lanes), None))

        def load(pointer: Any) -> Any:
            return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=4)

        first = [repeated(builder.load(at(start, r))) for r, _ in places]
        before, body, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(body)
        builder.position_at_end(body)
        k, sums = builder.phi(i64), [builder.phi(vector) for _ in places]
        here = builder.mul(k, i64(instruction.columns))
        others = [load(at(packed, j, here, v * instruction.lanes)) for v in range(instruction.vectors)]
        if instruction.unsigned:
            flips = ir.Constant(vector, [_TOP_BITS - 2**32] * instruction.lanes)
            others = [builder.xor(other, flips) for other in others]
        words = [repeated(builder.load(at(packed, i, here, r), align=4)) for r in range(instruction.rows)]
        others, words = ([builder.bitcast(one, operand) for one in both] for both in (others, words))
        added = [
            builder.call(multiply_add, [one, others[v], words[r]]) for one, (r, v) in zip(sums, places, strict=True)
        ]
        following = builder.add(k, i64(1))
        for phi, begin, end in zip([k, *sums], [i64(0), *first], [following, *added], strict=True):
            phi.add_incoming(begin, before)
            phi.add_incoming(end, body)
        builder.cbranch(builder.icmp_signed("<", following, n), body, after)
        builder.position_at_end(after)
        for values, (r, v) in zip(added, places, strict=True):
            place = at(tile, r * instruction.columns + v * instruction.lanes)
            builder.store(values, builder.bitcast(place, vector.as_pointer()), align=4)
        return context.get_dummy_value()

    def tile(typing: Any, packed: Any, i: Any, j: Any, n: Any, start: Any, tile: Any) -> Any:
        return types.void(packed, types.intp, types.intp, types.intp, start, tile), generate

    return intrinsic(tile)


_tile = tile_of(INSTRUCTION or INSTRUCTIONS[0])


@compiled
def pack(block: Array, flips: Array, packed: Array, total: Array) -> None:
    """Write words of 4 samples of each column of bytes (n, d) into ``packed`` (panels, n / 4, columns), signed.

    ``flips`` (2,) are for even and odd columns. ``total`` (d,) becomes the sum of each column. Words behind the last
    sample and the last column are 0.
    """
    n, d = block.shape
    width = packed.shape[2]
    total[:] = 0
    flip = np.empty(width, np.uint32)
    for j in range(width):
        flip[j] = flips[j % 2]
    for k in range(packed.shape[1]):
        for p in range(packed.shape[0]):
            word = packed[p, k]
            lo, hi = p * width, min((p + 1) * width, d)
            columns = hi - lo
            if 4 * k + 4 <= n:
                a, b = block[4 * k, lo:hi], block[4 * k + 1, lo:hi]
                c, e = block[4 * k + 2, lo:hi], block[4 * k + 3, lo:hi]
                for j in range(columns):
                    low = np.uint32(a[j]) | np.uint32(b[j]) << np.uint32(8)
                    high = np.uint32(c[j]) << np.uint32(16) | np.uint32(e[j]) << np.uint32(24)
                    word[j] = (low | high) ^ flip[j]
            else:
                for j in range(columns):
                    word[j] = 0
                for i in range(4 * k, n):
                    row, shift = block[i, lo:hi], np.uint32(8 * (i - 4 * k))
                    for j in range(columns):
                        word[j] |= ((np.uint32(row[j]) << shift) ^ flip[j]) & (np.uint32(255) << shift)
            for j in range(columns, width):
                word[j] = 0
            part = total[lo:hi]
            for j in range(columns):
                first = np.int32(np.int8(word[j])) + np.int32(np.int8(word[j] >> np.uint32(8)))
                last = np.int32(np.int8(word[j] >> np.uint32(16))) + np.int32(np.int8(word[j] >> np.uint32(24)))
                part[j] += first + last


@compiled
def pack_rows(words: Array, packed: Array) -> None:
    """Write words of 4 successive values of each row (n, words) into ``packed`` (panels, words, columns).

    A column of a panel is a row. Columns behind the last row are 0.
    """
    n, m = words.shape
    width = packed.shape[2]
    for p in range(packed.shape[0]):
        lo, hi = p * width, min((p + 1) * width, n)
        # A line of the cache has 16 words. Each is read once, and the lines that are written stay in the first cache.
        for first in range(0, m, 16):
            for c in range(lo, hi):
                for k in range(first, min(first + 16, m)):
                    packed[p, k, c - lo] = words[c, k]
        for k in range(m):
            for c in range(hi - lo, width):
                packed[p, k, c] = 0


@compiled
def add_rows(values: Array, total: Array) -> None:
    """Add the rows of bytes (n, d) to ``total`` (d,), int32."""
    for i in range(len(values)):
        for j in range(len(total)):
            total[j] += values[i, j]


@compiled
def row_sums(values: Array, total: Array) -> None:
    """Write the sums of the rows of bytes (n, d) into ``total`` (n,), int32."""
    for i in range(len(values)):
        row, one = values[i], np.int32(0)
        for j in range(len(row)):
            one += np.int32(row[j])
        total[i] = one


@compiled
def add_narrow(packed: Array, start: Array, tile: Array, cross: Array) -> None:
    """Add the products of columns to the lower triangle of ``cross`` (d, d), float64."""
    d, words = len(cross), packed.shape[1]
    for j in range(0, d, _COLUMNS):
        for i in range(j, d, _ROWS):
            first = i // _COLUMNS * words * _COLUMNS + i % _COLUMNS
            _tile(packed, first, j * words, words, start[i:], tile)
            for r in range(min(_ROWS, d - i)):
                row, sums = cross[i + r, j : min(j + _COLUMNS, i + r + 1)], tile[r]
                for c in range(len(row)):
                    row[c] += sums[c]


@compiled
def add_wide(packed: Array, start: Array, tile: Array, cross: Array) -> None:
    """Add the products of columns of 16 bits to the lower triangle of ``cross`` (d, d), float64.

    Of column j, ``packed`` has the low byte as its column 2 j, and the high byte as 2 j + 1.
    """
    d, words = 2 * len(cross), packed.shape[1]
    for j in range(0, d, _COLUMNS):
        for i in range(j, d, _ROWS):
            first = i // _COLUMNS * words * _COLUMNS + i % _COLUMNS
            _tile(packed, first, j * words, words, start[i:], tile)
            for r in range(0, min(_ROWS, d - i), 2):
                row, low, high = cross[(i + r) // 2, j // 2 : min(j + _COLUMNS, i + r + 2) // 2], tile[r], tile[r + 1]
                for c in range(len(row)):
                    mixed = np.int64(low[2 * c + 1]) + np.int64(high[2 * c])
                    row[c] += (np.int64(high[2 * c + 1]) << 16) + (mixed << 8) + np.int64(low[2 * c])


@compiled
def add_mixed(packed: Array, n: int, first: int, words: int, start: Array, tile: Array, out: Array) -> None:
    """Add products of ``n`` columns of 16 bits with columns of bytes to ``out`` (n, columns of bytes), float64.

    In ``packed``, panels of both bytes of the columns of 16 bits, as in `add_wide`, precede the panels of bytes, which
    begin at ``first``.
    """
    for j in range(0, out.shape[1], _COLUMNS):
        for i in range(0, 2 * n, _ROWS):
            _tile(packed, i // _COLUMNS * words * _COLUMNS + i % _COLUMNS, first + j * words, words, start[i:], tile)
            for r in range(0, min(_ROWS, 2 * n - i), 2):
                row, low, high = out[(i + r) // 2, j : j + _COLUMNS], tile[r], tile[r + 1]
                for c in range(len(row)):
                    row[c] += 256.0 * high[c] + low[c]


@compiled
def center(gram: Array, along: Array, square: float) -> float:
    """Complete the lower triangle of x x^T to (x - p) (x - p)^T, for ``along`` = x p and ``square`` = p p.

    Returns the trace.
    """
    trace = 0.0
    for i in range(len(gram)):
        for j in range(i + 1):
            value = gram[i, j] - along[i] - along[j] + square
            gram[i, j] = gram[j, i] = value
        trace += gram[i, i]
    return trace


@compiled
def combine(sums: Array, gains: Array, offsets: Array, point: Array, sizes: Array, basis: Array, out: Array) -> None:
    """Write gains * sums - offsets * point + sizes * basis into ``out`` (m, d), rounded once."""
    for r in range(len(out)):
        gain, offset, size = gains[r], offsets[r], sizes[r]
        row, sum_, old = out[r], sums[r], basis[r]
        for c in range(len(row)):
            row[c] = gain * sum_[c] - offset * point[c] + size * old[c]


def add_gram(block: Array, cross: Array, total: Array) -> None:
    """Add x^T x and the sum of the rows x to sums in float64, where x is ``block`` minus its center, `center_of_range`.

    Parameters
    ----------
    block : array (n, d), native uint8, int8, bool, uint16 or int16
    cross : array (d, d), float64, C-ordered
        Only the lower triangle is changed. The result is exact while it is below 2^53 in magnitude.
    total : array (d,), float64

    Notes
    -----
    Costs n d^2 / 2 products of bytes, four times as many for 16 bits; memory: 2 d bytes (4 for 16 bits) for each of up
    to 4,096 rows.
    """
    wide = block.dtype.itemsize == 2
    # Columns of 16 bits are columns of two bytes, of which x is the sum, 256 times the high one and the low one.
    values = np.ascontiguousarray(block).view(np.uint8)
    flips = np.where([block.dtype.kind == "u" or wide, block.dtype.kind == "u"], _TOP_BITS, 0).astype(np.uint32)
    d = values.shape[1]
    sums, start = np.empty(d, np.int32), np.zeros(-(-d // _COLUMNS) * _COLUMNS, np.int32)
    tile = np.empty((_ROWS, _COLUMNS), np.int32)
    for rows in (values[few] for few in blocks(len(values), MOST_ROWS)):
        packed = scratch("packed", (len(start) // _COLUMNS, -(-len(rows) // 4), _COLUMNS), np.uint32)
        pack(rows, flips, packed, sums)
        if _UNSIGNED:
            start[:d] = -128 * sums
        (add_wide if wide else add_narrow)(packed, start, tile, cross)
        total += sums.reshape(-1, 2) @ [1, 256] if wide else sums


class WideColumns:
    """Columns of 16-bit integers, packed to be multiplied by columns of bytes: sums over up to 4,096 rows.

    Parameters
    ----------
    values : array (n, m), int16
        At most `MOST_WIDE` in magnitude.
    n_bytes : int
        Most columns of bytes of one product.
    """

    def __init__(self, values: Array, n_bytes: int) -> None:
        n, self._m = values.shape
        self._words, panels = -(-n // 4), -(-2 * self._m // _COLUMNS)
        self._first = panels * self._words * _COLUMNS
        size = self._first + -(-n_bytes // _COLUMNS) * self._words * _COLUMNS
        self._packed = scratch("wide columns", (size,), np.uint32)
        sums, self._start = np.empty(2 * self._m, np.int32), np.zeros(panels * _COLUMNS, np.int32)
        # The value is 256 times its high byte plus its low byte, and both are signed.
        both = np.add(values, np.int16(128), order="C").view(np.uint8)
        pack(both, np.array([_TOP_BITS, 0], np.uint32), self._packed[: self._first].reshape(panels, -1, _COLUMNS), sums)
        if _UNSIGNED:
            self._start[: 2 * self._m] = -128 * sums
        self._tile = np.empty((_ROWS, _COLUMNS), np.int32)

    def add_combined(self, block: Array, out: Array) -> None:
        """Add the products of the columns with those of x to ``out`` (m, c); x is ``block`` (n, c) minus its center."""
        sums = np.empty(block.shape[1], np.int32)
        flips = np.full(2, _TOP_BITS if block.dtype.kind == "u" else 0, np.uint32)
        pack(block.view(np.uint8), flips, self._room(block.shape[1]), sums)
        add_mixed(self._packed, self._m, self._first, self._words, self._start, self._tile, out)

    def add_projected(self, block: Array, out: Array, grams: Sequence[Array]) -> None:
        """Add the products of the columns with the rows of x to ``out`` (m, r); x is ``block`` (r, n) minus its center.

        Adds the products of the rows among themselves to the lower triangles of ``grams``. Each has the next rows, as
        many as a multiple of `GROUP`, except for the last one.
        """
        n, d = block.shape
        signed = scratch("signed rows", (n, 4 * self._words), np.uint8)
        np.bitwise_xor(block.view(np.uint8), np.uint8(128 if block.dtype.kind == "u" else 0), out=signed[:, :d])
        signed[:, d:] = 0
        packed, first = self._room(n), 0
        pack_rows(signed.view(np.uint32), packed)
        add_mixed(self._packed, self._m, self._first, self._words, self._start, self._tile, out)
        start = np.zeros(len(packed) * _COLUMNS, np.int32)
        if _UNSIGNED:
            row_sums(signed.view(np.int8), start[:n])
            start *= -128
        for gram in grams:
            part = packed[first // _COLUMNS : -(-(first + len(gram)) // _COLUMNS)]
            add_narrow(part, start[first:], self._tile, gram)
            first += len(gram)

    def _room(self, n: int) -> Array:
        panels = -(-n // _COLUMNS)
        return self._packed[self._first :][: panels * self._words * _COLUMNS].reshape(panels, self._words, _COLUMNS)
