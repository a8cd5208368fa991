"""Exact products of 8-bit and 16-bit integers by the dot-product instructions of a processor.

::

    samples of bytes     words of 4 samples         a tile of X^T X
    x x x x ... (n, d)   in panels of columns    rows |  sums of 32 bits, which stay
    x x x x          ->  [panel][n / 4][columns] -> r |  in registers over all n samples
    x x x x                                           |______ columns

Each instruction adds 4 products of bytes to each of 4, 8 or 16 sums of 32 bits. One packed copy of the samples serves
as both factors. For few rows there is a plain loop.

Import this module only in functions that need it; see `dpca.kernels.compiled`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dpca.kernels.algebra.linalg import scratch
from dpca.kernels.algebra.types import Array, blocks
from dpca.kernels.compiled import compiled, deferred, fetch, processor

#: Samples of one product. Their panels stay in the second cache. Sums of products of two signed bytes over them stay
#: below 2^26, and those of 32 bits wrap around without harm on the way.
MOST_ROWS = 4096
# Bytes of a row whose products add up to less than 2^31: those of 32 rows stay in the cache of a core.
_PAIRED = 8192
# Columns from which 16-bit values of a small range are faster as bytes, and samples that tell the range at first.
_AS_BYTES_FROM, _LOOKED_AT = 128, 64
# Numbers of float64 in a line of the cache.
LINE = 8
# Bits of each of 4 bytes that are flipped to subtract 128 from it.
TOP_BITS = 0x80808080


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


#: The instruction of this processor, or None.
INSTRUCTION = usable(processor()[1])
ROWS, COLUMNS = (INSTRUCTION.rows, INSTRUCTION.columns) if INSTRUCTION else (1, 1)
UNSIGNED = INSTRUCTION is not None and INSTRUCTION.unsigned


def tile_of(instruction: Instruction) -> Any:
    """Return a function for compiled code that computes a tile of sums.

    It has the arguments (left, i, right, j, n, start, tile): ``tile`` (rows, columns) becomes ``start`` (rows,) plus
    the sum over n words of the products of word i + k columns + r of ``left``, which is signed, and word
    j + k columns + c of ``right``.
    """
    from llvmlite import ir
    from numba.core import types
    from numba.extending import intrinsic

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
        left, i, right, j, n, start, tile = data
        kind = ir.FunctionType(vector, [vector, operand, operand])
        multiply_add = _function_of(builder.module, kind, instruction.name)

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
        others = [load(at(right, j, here, v * instruction.lanes)) for v in range(instruction.vectors)]
        if instruction.unsigned:
            flips = ir.Constant(vector, [TOP_BITS - 2**32] * instruction.lanes)
            others = [builder.xor(other, flips) for other in others]
        words = [repeated(builder.load(at(left, i, here, r), align=4)) for r in range(instruction.rows)]
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

    def tile(typing: Any, left: Any, i: Any, right: Any, j: Any, n: Any, start: Any, tile: Any) -> Any:
        return types.void(left, types.intp, right, types.intp, types.intp, start, tile), generate

    return intrinsic(tile)


def _function_of(module: Any, kind: Any, name: str) -> Any:
    from numba.core import cgutils

    return cgutils.get_or_insert_function(module, kind, name)


tile_products = deferred(tile_of, INSTRUCTION or INSTRUCTIONS[0])


@compiled
def pack(block: Array, flips: Array, packed: Array, total: Array) -> None:
    """Write words of 4 samples of each column of bytes (n, d) into ``packed`` (panels, n / 4, columns), signed.

    ``flips`` (2,) are for even and odd columns. ``total`` (d,) becomes the sum of each column, unless it is (0,). Words
    behind the last sample and the last column are 0.
    """
    (n, d), (panels, words, width) = block.shape, packed.shape
    # Long loops over all columns take less time than loops over the columns of a panel.
    line, flip = np.zeros(panels * width, np.uint32), np.empty(d, np.uint32)
    for j in range(d):
        flip[j] = flips[j % 2]
    total[:] = 0
    for k in range(words):
        if 4 * k + 4 <= n:
            a, b, c, e = block[4 * k], block[4 * k + 1], block[4 * k + 2], block[4 * k + 3]
            for j in range(d):
                low = np.uint32(a[j]) | np.uint32(b[j]) << np.uint32(8)
                high = np.uint32(c[j]) << np.uint32(16) | np.uint32(e[j]) << np.uint32(24)
                line[j] = (low | high) ^ flip[j]
        else:
            line[:d] = 0
            for i in range(4 * k, n):
                row, shift = block[i], np.uint32(8 * (i - 4 * k))
                for j in range(d):
                    line[j] |= ((np.uint32(row[j]) << shift) ^ flip[j]) & (np.uint32(255) << shift)
        for j in range(len(total)):
            word = line[j]
            first = np.int32(np.int8(word)) + np.int32(np.int8(word >> np.uint32(8)))
            last = np.int32(np.int8(word >> np.uint32(16))) + np.int32(np.int8(word >> np.uint32(24)))
            total[j] += first + last
        for p in range(panels):
            for j in range(width):
                packed[p, k, j] = line[p * width + j]


@compiled
def pack_rows(words: Array, flip: int, packed: Array) -> None:
    """Write words of 4 successive values of each row (n, words), with flipped bits, into ``packed``.

    A column of a panel in ``packed`` (panels, words, columns) is a row. Columns behind the last row are 0.
    """
    n, m = words.shape
    width, f = packed.shape[2], np.uint32(flip)
    for p in range(packed.shape[0]):
        lo, hi = p * width, min((p + 1) * width, n)
        fours = lo + (hi - lo) // 4 * 4
        # A line of the cache has 16 words. Each is read once, and the lines that are written stay in the first cache.
        # Processors do not predict reads of so many rows: fetching the next lines halves the time.
        for first in range(0, m, 16):
            last = min(first + 16, m)
            for c in range(lo, fours, 4):
                rows = words[c : c + 4]
                if last < m:
                    for r in range(4):
                        fetch(rows[r], last)
                for k in range(first, last):
                    four = packed[p, k, c - lo : c - lo + 4]
                    four[0], four[1] = rows[0, k] ^ f, rows[1, k] ^ f
                    four[2], four[3] = rows[2, k] ^ f, rows[3, k] ^ f
            for c in range(fours, hi):
                for k in range(first, last):
                    packed[p, k, c - lo] = words[c, k] ^ f
        for k in range(m):
            for c in range(hi - lo, width):
                packed[p, k, c] = 0


@compiled
def row_sums(values: Array, total: Array) -> None:
    """Write the sums of the rows of bytes (n, d) into ``total`` (n,), int32."""
    for i in range(len(values)):
        row, one = values[i], np.int32(0)
        for j in range(len(row)):
            one += np.int32(row[j])
        total[i] = one


@compiled
def add_narrow(packed: Array, top: int, start: Array, tile: Array, cross: Array) -> None:
    """Add the products of columns to rows ``top``, ... of the lower triangle of a matrix, ``cross``, float64.

    ``top`` is a multiple of `integers.GROUP`.
    """
    n, words = len(cross), packed.shape[1]
    # All tiles of two panels in turn: both stay in the second cache.
    for p in range(top, top + n, COLUMNS):
        for j in range(0, p + 1, COLUMNS):
            for i in range(p, min(p + COLUMNS, top + n), ROWS):
                first = i // COLUMNS * words * COLUMNS + i % COLUMNS
                for r in range(min(ROWS, top + n - i)):
                    for c in range(j, min(j + COLUMNS, i + r + 1), LINE):
                        fetch(cross[i - top + r], c)
                tile_products(packed, first, packed, j * words, words, start[i:], tile)
                for r in range(min(ROWS, top + n - i)):
                    row, sums = cross[i - top + r, j : min(j + COLUMNS, i + r + 1)], tile[r]
                    for c in range(len(row)):
                        row[c] += sums[c]


@compiled
def add_wide(packed: Array, start: Array, tile: Array, cross: Array) -> None:
    """Add the products of columns of 16 bits to the lower triangle of ``cross`` (d, d), float64.

    Of column j, ``packed`` has the low byte as its column 2 j, and the high byte as 2 j + 1.
    """
    d, words = 2 * len(cross), packed.shape[1]
    for p in range(0, d, COLUMNS):
        for j in range(0, p + 1, COLUMNS):
            for i in range(p, min(p + COLUMNS, d), ROWS):
                first = i // COLUMNS * words * COLUMNS + i % COLUMNS
                tile_products(packed, first, packed, j * words, words, start[i:], tile)
                for r in range(0, min(ROWS, d - i), 2):
                    row, low = cross[(i + r) // 2, j // 2 : min(j + COLUMNS, i + r + 2) // 2], tile[r]
                    high = tile[r + 1]
                    for c in range(len(row)):
                        mixed = np.int64(low[2 * c + 1]) + np.int64(high[2 * c])
                        row[c] += (np.int64(high[2 * c + 1]) << 16) + (mixed << 8) + np.int64(low[2 * c])


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
    to 4,096 rows. If the values of each column of 16 bits are at most 255 apart, as the noise of many cameras is, they
    are multiplied as bytes about the least one, and moved: twice as fast for 256 columns, three times for 1,875.
    """
    wide = block.dtype.itemsize == 2
    if wide and (found := _as_bytes(block)) is not None:
        wide, block, moved, before = False, *found, total.copy()
    else:
        moved = None
    # Columns of 16 bits are columns of two bytes, of which x is the sum, 256 times the high one and the low one.
    values = np.ascontiguousarray(block).view(np.uint8)
    flips = np.where([block.dtype.kind == "u" or wide, block.dtype.kind == "u"], TOP_BITS, 0).astype(np.uint32)
    d = values.shape[1]
    sums, start = np.empty(d, np.int32), np.zeros(-(-d // COLUMNS) * COLUMNS, np.int32)
    tile = np.empty((ROWS, COLUMNS), np.int32)
    for rows in (values[few] for few in blocks(len(values), MOST_ROWS)):
        packed = scratch("packed", (len(start) // COLUMNS, -(-len(rows) // 4), COLUMNS), np.uint32)
        pack(rows, flips, packed, sums)
        if UNSIGNED:
            start[:d] = -128 * sums
        if wide:
            add_wide(packed, start, tile, cross)
        else:
            add_narrow(packed, 0, start, tile, cross)
        total += sums.reshape(-1, 2) @ [1, 256] if wide else sums
    if moved is not None:
        displace_lower(cross, total - before, moved, len(block))
        total += len(block) * moved


def _as_bytes(block: Array) -> tuple[Array, Array] | None:
    """Return 16-bit values as bytes, and what to add to them about their centers, float64.

    Returns None for few columns, and if a column has values more than 255 apart.
    """
    if not len(block) or block.shape[1] < _AS_BYTES_FROM:
        return None
    for few in (block[:_LOOKED_AT], block):  # most columns of a large range show it at once
        least = few.min(axis=0)
        if (few.max(axis=0).astype(np.int64) - least > 255).any():
            return None
    # 128 is subtracted from bytes, and from both bytes of unsigned values of 16 bits.
    return (block - least).astype(np.uint8), least - (2.0**15 if block.dtype.kind == "u" else 0.0)


@compiled
def displace_lower(cross: Array, sums: Array, moved: Array, n: int) -> None:
    """Change the lower triangle of the products of n rows with these sums to that of the rows plus ``moved``."""
    for i in range(len(cross)):
        row, a, b = cross[i], sums[i] + n * moved[i], moved[i]
        for j in range(i + 1):
            row[j] += a * moved[j] + b * sums[j]


def add_row_products(block: Array, bands: Iterable[tuple[int, Array]]) -> None:
    """Add the products of rows of bytes (n, c), minus their center, to bands of the lower triangle of a matrix (n, n).

    ``bands`` are the first row of a band, a multiple of `integers.GROUP`, and its values (rows, columns), float64. c is
    at most `MOST_ROWS`.
    """
    panels = -(-len(block) // COLUMNS)
    packed = scratch("packed", (panels, -(-block.shape[1] // 4), COLUMNS), np.uint32)
    start, tile = packed_rows(block, packed), np.empty((ROWS, COLUMNS), np.int32)
    for top, values in bands:
        add_narrow(packed, top, start, tile, values)


def packed_rows(block: Array, packed: Array) -> Array:
    """Pack rows of bytes minus their center, and return with what their sums of products begin."""
    n, d = block.shape
    offset, values = 128 if block.dtype.kind == "u" else 0, block.view(np.uint8)
    if d % 4 or block.strides[1] != 1:
        values = scratch("rows of words", (n, 4 * packed.shape[1]), np.uint8)
        values[:, :d], values[:, d:] = block.view(np.uint8), offset
    pack_rows(np.require(values.view(np.uint32), requirements="A"), TOP_BITS if offset else 0, packed)
    start = np.zeros(len(packed) * COLUMNS, np.int32)
    if UNSIGNED:
        row_sums(block, start[:n])
        start *= -128
        start[:n] += 128 * offset * d
    return start


@compiled
def add_pairs(rows: Array, gram: Array) -> None:
    """Add the products of each pair of rows (n, d) of bytes to the lower triangle of ``gram`` (n, n), int64."""
    for start in range(0, rows.shape[1], _PAIRED):
        part = rows[:, start : start + _PAIRED]
        for i in range(len(part)):
            for j in range(i + 1):
                a, b, total = part[i], part[j], np.int32(0)
                for x in range(len(a)):
                    total = np.int32(total + np.int32(np.int32(a[x]) * np.int32(b[x])))
                gram[i, j] += total
