"""Products of integers against Python's integers: of this processor's kernel, and of all others in emulation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir

from dpca.kernels import integer_products, wide_products
from dpca.kernels.algebra import integers
from dpca.kernels.compiled import fetch_of
from dpca.kernels.integer_products import INSTRUCTION, INSTRUCTIONS, MOST_ROWS, Instruction, tile_of, usable
from dpca.rules.covariance import covariance

DTYPES = ("uint8", "int8", "bool", "uint16", "int16")
AddGram = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


def emulated(module: Any, kind: Any, name: str) -> Any:
    """Define what an instruction does: add 4 products of bytes to each sum."""
    name = f"emulated.{name}"
    if name in module.globals:
        return module.globals[name]
    of = next(one for one in INSTRUCTIONS if name.endswith(one.name))
    function = ir.Function(module, kind, name)
    builder, i32 = ir.IRBuilder(function.append_basic_block()), ir.IntType(32)
    bytes_of = ir.VectorType(ir.IntType(8), 4 * of.lanes)
    sums, *operands = function.args
    first, second = (builder.bitcast(operand, bytes_of) for operand in operands)
    extend = builder.zext if of.unsigned else builder.sext
    for lane in range(of.lanes):
        total = builder.extract_element(sums, i32(lane))
        for byte in range(4 * lane, 4 * lane + 4):
            a, b = extend(builder.extract_element(first, i32(byte)), i32), builder.extract_element(second, i32(byte))
            total = builder.add(total, builder.mul(a, builder.sext(b, i32)))
        sums = builder.insert_element(sums, total, i32(lane))
    builder.ret(sums)
    return function


def globals_of(module: Any, instruction: Instruction, compiled: tuple[str, ...]) -> dict[str, Any]:
    """A module of the kernel as it would be on another processor."""
    changed: dict[str, Any] = {**vars(module), "INSTRUCTION": instruction}
    changed |= {"ROWS": instruction.rows, "COLUMNS": instruction.columns, "tile_products": tile_of(instruction)}
    changed |= {"UNSIGNED": instruction.unsigned, "fetch": fetch_of()}
    for name in compiled:
        code = getattr(module, name).py_func.__code__
        changed[name] = numba.njit(FunctionType(code, changed))
    return changed


def kernel_of(instruction: Instruction) -> AddGram:
    """The kernel as it would be compiled for another processor."""
    changed = globals_of(integer_products, instruction, ("add_narrow", "add_wide"))
    return FunctionType(integer_products.add_gram.__code__, changed)


@pytest.fixture(scope="module", params=[one.feature for one in INSTRUCTIONS])
def other(request: pytest.FixtureRequest) -> Any:
    """The kernel of each instruction, emulated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_products, "_function_of", emulated)
        kernel = kernel_of(next(one for one in INSTRUCTIONS if one.feature == request.param))
        for dtype in ("uint8", "uint16"):  # compiled while the patch is active
            kernel(np.zeros((1, 1), dtype), np.zeros((1, 1)), np.zeros(1))
    return kernel


def assert_exact(add_gram: AddGram, block: np.ndarray) -> None:
    x = block.astype(object) - integers.center_of_range(block.dtype)
    d = block.shape[1]
    cross, total = np.triu(np.full((d, d), 7.0), 1), np.ones(d)
    add_gram(block, cross, total)
    expected = np.tril((x.T @ x).astype(float)) if len(block) else np.zeros((d, d))
    np.testing.assert_array_equal(cross, expected + np.triu(np.full((d, d), 7.0), 1))
    np.testing.assert_array_equal(total, (x.sum(axis=0) if len(block) else np.zeros(d)).astype(float) + 1)


def drawn(dtype: str, n: int, d: int, seed: int, extreme: bool) -> np.ndarray:
    """Random values, or the least, the largest and the middle of the range."""
    random = np.random.default_rng(seed)
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if extreme:
        return random.choice(np.array([low, high, (low + high + 1) // 2]), (n, d)).astype(dtype)
    return random.integers(low, high, (n, d), endpoint=True).astype(dtype)


shapes = given(
    st.sampled_from(DTYPES), st.integers(0, 300), st.integers(1, 60), st.integers(0, 2**32 - 1), st.booleans()
)
needs_instruction = pytest.mark.skipif(INSTRUCTION is None, reason="no dot-product instruction here")


def near(dtype: str, n: int, d: int, seed: int, apart: int) -> np.ndarray:
    """Columns of values that are this far apart, somewhere in the range; some at its ends."""
    random, limits = np.random.default_rng(seed), np.iinfo(dtype)
    least = random.integers(limits.min, limits.max - apart, d, endpoint=True)
    least[: d // 4], least[-(d // 4) :] = limits.min, limits.max - apart
    x = least + random.integers(0, apart, (n, d), endpoint=True)
    x[0], x[-1] = least, least + apart
    return x.astype(dtype)


@needs_instruction
@given(
    st.sampled_from(["uint16", "int16"]),
    st.integers(2, 300),
    st.integers(128, 150),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 254, 255, 256, 4000]),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_values_of_16_bits_that_are_near_each_other(dtype: str, n: int, d: int, seed: int, apart: int) -> None:
    x = near(dtype, n, d, seed, apart)
    assert (integer_products._as_bytes(x) is not None) == (apart <= 255)
    assert_exact(integer_products.add_gram, x)


@needs_instruction
def test_many_samples_near_each_other() -> None:
    assert_exact(integer_products.add_gram, near("uint16", MOST_ROWS + 70, 130, 0, 255))


def test_values_near_each_other_on_other_processors(other: AddGram) -> None:
    assert_exact(other, near("uint16", 70, 129, 0, 200))


@needs_instruction
@shapes
@settings(deadline=None, max_examples=100, derandomize=True)
def test_any_shape(dtype: str, n: int, d: int, seed: int, extreme: bool) -> None:
    assert_exact(integer_products.add_gram, drawn(dtype, n, d, seed, extreme))


@shapes
@settings(deadline=None, max_examples=60, derandomize=True)
def test_any_shape_on_other_processors(other: AddGram, dtype: str, n: int, d: int, seed: int, extreme: bool) -> None:
    assert_exact(other, drawn(dtype, n, d, seed, extreme))


@needs_instruction
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), [(MOST_ROWS + 3, 49), (5, 401)])
def test_several_blocks_and_panels(dtype: str, n: int, d: int) -> None:
    block = drawn(dtype, n, d, 3, False)
    before = block.copy()
    assert_exact(integer_products.add_gram, block)
    np.testing.assert_array_equal(block, before)


@needs_instruction
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("end", ["least", "largest"])
def test_the_most_rows_of_the_most_extreme_values_do_not_overflow(dtype: str, end: str) -> None:
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    assert_exact(integer_products.add_gram, np.full((MOST_ROWS, 2), low if end == "least" else high, dtype))
    assert MOST_ROWS * 2**14 <= 2**26


@needs_instruction
def test_columns_of_a_larger_array() -> None:
    wide = drawn("uint16", 37, 90, 1, False)
    assert_exact(integer_products.add_gram, wide[:, 11:60])
    assert_exact(integer_products.add_gram, wide[::2])


@pytest.fixture(scope="module", params=[None, *(one.feature for one in INSTRUCTIONS)])
def wide(request: pytest.FixtureRequest) -> Any:
    """`WideColumns` and `add_row_products` of this processor, and for each instruction, emulated."""
    if request.param is None:
        if INSTRUCTION is None:
            pytest.skip("no dot-product instruction here")
        return SimpleNamespace(columns=wide_products.WideColumns, add_row_products=integer_products.add_row_products)
    instruction = next(one for one in INSTRUCTIONS if one.feature == request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_products, "_function_of", emulated)
        rows = globals_of(integer_products, instruction, ("add_narrow",))
        of_rows = {name: FunctionType(rows[name].__code__, rows) for name in ("packed_rows", "add_row_products")}
        rows |= of_rows
        changed = globals_of(wide_products, instruction, ("add_mixed",))
        changed |= {"add_narrow": rows["add_narrow"], "packed_rows": of_rows["packed_rows"]}
        methods = {
            name: FunctionType(one.__code__, changed)
            for name, one in vars(wide_products.WideColumns).items()
            if isinstance(one, FunctionType)
        }
        columns = type("Emulated", (), methods)
        block = np.zeros((4, 4), np.uint8)  # compiled while the patch is active
        made: Any = columns(np.zeros((4, 1), np.int16), 4)
        made.add_combined(block, np.zeros((1, 4)))
        made.add_projected(block, np.zeros((1, 4)), [np.zeros((4, 4))])
    return SimpleNamespace(columns=columns, add_row_products=of_rows["add_row_products"])


@given(
    st.sampled_from(["uint8", "int8", "bool"]),
    st.integers(1, 260),
    st.integers(1, 60),
    st.integers(1, 30),
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.sampled_from(["int8", "int16"]),
)
@settings(deadline=None, max_examples=90, derandomize=True)
def test_products_of_bytes_with_columns_of_8_and_16_bits(
    wide: Any, dtype: str, n: int, d: int, m: int, seed: int, extreme: bool, kind: str
) -> None:
    """Along rows and along columns, and the products of the rows in groups, added to what is there."""
    block = drawn(dtype, n, d, seed, extreme)
    x = block.astype(object) - integers.center_of_range(dtype)
    random = np.random.default_rng(seed)
    most = 127 if kind == "int8" else wide_products.MOST_WIDE
    for length in (n, d):
        values = random.choice([-most, most], (length, m)) if extreme else random.integers(-most, most + 1, (length, m))
        expected = values.astype(object).T @ (x if length == n else x.T) + 1
        out, grams = np.ones(expected.shape), [np.zeros((min(192, n - i),) * 2) for i in range(0, n, 192)]
        columns = wide.columns(values.astype(kind), n + d)
        if length == n:
            columns.add_combined(block, out)
            np.testing.assert_array_equal(out, expected.astype(float))
        if length == d:
            out = np.ones((m, n))
            columns.add_projected(block, out, grams)
            np.testing.assert_array_equal(out, (values.astype(object).T @ x.T + 1).astype(float))
            for i, gram in zip(range(0, n, 192), grams, strict=True):
                some = x[i : i + 192]
                np.testing.assert_array_equal(gram, np.tril((some @ some.T).astype(float)))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
@pytest.mark.parametrize(("n", "c"), [(401, 37), (3, 4096), (200, 8)])
@pytest.mark.parametrize("layout", ["C", "F", "columns"])
def test_products_of_rows_in_bands(wide: Any, dtype: str, n: int, c: int, layout: str) -> None:
    block = drawn(dtype, n, c, 5, True)
    x = block.astype(np.int64) - integers.center_of_range(dtype)
    if layout == "columns":  # words of these rows begin anywhere
        larger = np.full((n, c + 3), 1, dtype)
        larger[:, 2:-1] = block
        block = larger[:, 2:-1]
    block = np.asarray(block, order="F" if layout == "F" else None)
    bands = [(top, np.ones((min(192, n - top), min(top + 192, n)))) for top in range(0, n, 192)]
    wide.add_row_products(block, bands)
    for top, values in bands:
        expected = np.tril(x[top : top + 192] @ x[: values.shape[1]].T, top) + 1.0
        np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("value", [-(2**15) + 129, 2**15 - 129, -128, 127])
@pytest.mark.parametrize("byte", [0, 255])
def test_the_most_rows_do_not_overflow(wide: Any, value: int, byte: int) -> None:
    kind = np.int8 if abs(value) < 129 else np.int16
    assert kind is np.int8 or abs(value) == wide_products.MOST_WIDE
    out = np.zeros((1, 1))
    columns = wide.columns(np.full((MOST_ROWS, 1), value, kind), 1)
    columns.add_combined(np.full((MOST_ROWS, 1), byte, np.uint8), out)
    assert out[0, 0] == MOST_ROWS * value * (byte - 128)


@pytest.mark.parametrize(
    ("features", "feature"),
    [
        ("+avx2,+avx512f,+avx512vnni,+avxvnni", "avx512vnni"),
        ("+avx2,-avx512vnni,+avxvnni", "avxvnni"),
        ("+neon,+dotprod", "dotprod"),
        ("+avx2,-avx512vnni,-avxvnni", None),
        ("", None),
    ],
)
def test_instructions_are_used_where_they_exist(features: str, feature: str | None) -> None:
    found = usable(features)
    assert (found.feature if found else None) == feature


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda one: one.feature)
def test_tiles_fit_the_registers(instruction: Instruction) -> None:
    registers = 16 if instruction.feature == "avxvnni" else 32
    sums = instruction.rows * instruction.vectors
    assert sums + instruction.vectors + 1 <= registers
    assert instruction.rows % 2 == 0
    assert instruction.columns % instruction.rows == 0
    assert integers.GROUP % instruction.columns == 0


@pytest.mark.parametrize(
    ("instruction", "triple", "word"),
    [
        (INSTRUCTIONS[0], "x86_64-unknown-linux-gnu", "vpdpbusd"),
        (INSTRUCTIONS[1], "x86_64-unknown-linux-gnu", "vpdpbusd"),
        (INSTRUCTIONS[2], "aarch64-unknown-linux-gnu", "sdot"),
    ],
    ids=["avx512vnni", "avxvnni", "dotprod"],
)
def test_each_sum_is_one_instruction(instruction: Instruction, triple: str, word: str) -> None:
    """Compiled for the other processors, too: no sum leaves its register inside the loop."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip(f"this LLVM does not compile for {triple}")
    assembly = target.create_target_machine(features=f"+{instruction.feature}", opt=3).emit_assembly(
        llvm.parse_assembly(llvm_of(instruction, triple))
    )
    loop = assembly.split(word)
    assert len(loop) - 1 == instruction.rows * instruction.vectors
    inside = "".join(loop[1:-1])
    assert not any(spill in inside for spill in ("(%rsp)", "[sp"))


def llvm_of(instruction: Instruction, triple: str) -> str:
    """The tile as a function of its own."""
    _, generate = tile_of(instruction)._defn(None, *[numba.types.intp] * 7)
    module = ir.Module()
    module.triple = triple
    pointer, i64 = ir.IntType(32).as_pointer(), ir.IntType(64)
    arguments = [pointer, i64, pointer, i64, i64, pointer, pointer]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    signature = SimpleNamespace(args=[None] * 7)
    generate(SimpleNamespace(get_dummy_value=lambda: None), builder, signature, function.args)
    builder.ret_void()
    return str(module)


def test_plans_of_covariances_know_the_panels_and_rows() -> None:
    """They cannot load the kernel, which takes a third of a second."""
    assert max(one.columns for one in INSTRUCTIONS) == covariance._PANEL
    assert covariance._MOST_BLOCK_ROWS == MOST_ROWS


def test_without_a_compiler_there_is_no_kernel() -> None:
    program = "from dpca.kernels.algebra import integers; assert integers.kernel() is None"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)


def test_few_products_do_not_load_the_kernel() -> None:
    program = """
import sys, numpy as np
from dpca.kernels.algebra import integers
assert integers.kernel(10**8) is None and "llvmlite" not in sys.modules
integers.kernel(2 * 10**9)
assert "llvmlite" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
