"""Loops that are called without numba, against numba itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from dpca.kernels import compiled as loops
from dpca.kernels.compiled import Loop
from dpca.storage.remote.memory import peak_resident_bytes

SOURCE = """
import numpy as np
from dpca.kernels.compiled import compiled, reordered
SCALE = 3

@compiled
def inner(x):
    return SCALE * x

@reordered
def scaled_sum(values, weight, out):
    work = np.empty(len(values))
    for i in range(len(values)):
        work[i] = inner(values[i]) * weight
    out[0], out[1] = work[0], work[1]
    return work[2] + work[3] + work[4]
"""
CALL = """
import sys, numpy as np, loops_of_test
out = np.zeros(2)
print(loops_of_test.scaled_sum(np.arange(5.0), 2.0, out), *out, "numba" in sys.modules)
"""


def run(folder: Path, program: str = CALL, **environment: str) -> str:
    """What a program prints in a new process, with its module in a folder that has a cache of its own."""
    path = os.pathsep.join([str(folder), str(Path(loops.__file__).parents[2])])
    given = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "home"), **environment}
    given["PYTHONDONTWRITEBYTECODE"] = "1"  # a module that changes twice a second would not be read again
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=given, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module and its machine code."""
    folder = tmp_path_factory.mktemp("loops")
    (folder / "__pycache__").mkdir(mode=0o755)
    (folder / "loops_of_test.py").write_text(SOURCE)
    assert run(folder) == "54.0 0.0 6.0 True"
    return folder


def code_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.loop"))


def test_a_later_process_needs_no_numba(filled: Path) -> None:
    assert run(filled) == "54.0 0.0 6.0 False"
    assert [one.parent.name for one in code_of(filled)] == ["__pycache__"]


@pytest.mark.parametrize("variable", ["NUMBA_DISABLE_JIT", "NUMBA_NUM_THREADS"])
def test_variables_of_numba_hold(filled: Path, variable: str) -> None:
    assert run(filled, **{variable: "1"}) == "54.0 0.0 6.0 True"


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damaged_code_is_compiled_anew(filled: Path, damage: str) -> None:
    (file,) = code_of(filled)
    whole = file.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    file.write_bytes(whole[:middle] if damage == "cut" else changed)
    assert run(filled) == "54.0 0.0 6.0 True"
    assert run(filled) == "54.0 0.0 6.0 False"


@pytest.mark.parametrize(("old", "new", "result"), [("3\n", "4\n", "72.0 0.0 8.0"), ("* x", "* x + 1", "60.0 2.0 8.0")])
def test_changed_sources_are_compiled_and_replace_the_code(filled: Path, old: str, new: str, result: str) -> None:
    module = filled / "loops_of_test.py"
    try:
        module.write_text(SOURCE.replace(old, new))
        assert run(filled) == f"{result} True"
        assert run(filled) == f"{result} False"
        assert len(code_of(filled)) == 1
    finally:
        module.write_text(SOURCE)


def test_code_that_others_could_have_written_is_not_used(filled: Path) -> None:
    """It is then in the user's cache, and in no cache if that is open to others, too."""
    beside, home = filled / "__pycache__", filled / "home" / "dpca"
    run(filled)
    try:
        beside.chmod(0o777)
        assert run(filled) == "54.0 0.0 6.0 True"
        assert run(filled) == "54.0 0.0 6.0 False"
        assert home.stat().st_mode & 0o777 == 0o700
        home.chmod(0o770)
        assert run(filled) == "54.0 0.0 6.0 True"
    finally:
        beside.chmod(0o755)
        home.chmod(0o700)
        for file in code_of(home):
            file.unlink()


def test_code_that_cannot_be_linked_is_called_by_numba(filled: Path) -> None:
    program = f"from dpca.kernels import compiling\ncompiling._ALLOCATE = ''\n{CALL}"
    (file,) = code_of(filled)
    file.unlink()
    assert run(filled, program) == "54.0 0.0 6.0 True"
    assert run(filled) == "54.0 0.0 6.0 True"
    file.unlink()
    assert run(filled) == "54.0 0.0 6.0 True"


def test_unknown_arrays_are_given_to_numba(filled: Path) -> None:
    program = f"from dpca.kernels import compiled\ncompiled.STRIDES = 40\ncompiled._ground = lambda: b''\n{CALL}"
    assert run(filled, program) == "54.0 0.0 6.0 True"


def weighted(x: Any, out: Any, number: Any) -> Any:
    """Add the values of an array, times a number, in an order that depends on its layout, and keep the sum."""
    total = x.dtype.type(0) * number
    for row in x:
        for value in row:
            total = total / 3 + value * number
    out[0] = total
    return float(total)


LAYOUTS: dict[str, Any] = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "reversed": lambda a: a[::-1, ::-1],
    "empty": lambda a: a[:0],
    "subclass": lambda a: a.view(np.memmap),
    "other dtype": lambda a: a.view(np.dtype(a.dtype.str, metadata={"of": 1})),
}


@pytest.fixture(scope="module")
def both() -> tuple[Loop, Any]:
    return Loop(weighted), numba.njit(error_model="numpy")(weighted)


@pytest.mark.parametrize(
    "number", [3, 1.5, True, np.float32(0.1), np.uint8(200), np.int64(-3), np.float64(1 / 3)], ids=repr
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "uint8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_have_the_bits_of_numba(both: tuple[Loop, Any], layout: str, dtype: str, number: Any) -> None:
    x = np.random.default_rng(0).integers(1, 200, (5, 7)).astype(dtype)
    given, out, expected = LAYOUTS[layout](x), np.ones(1), np.ones(1)
    given.flags.writeable = dtype != "uint8"
    assert both[0](given, out, number) == both[1](np.asarray(given), expected, number)
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("result", [5, 0.25, True, None], ids=repr)
def test_results_have_their_types(result: Any) -> None:
    def first(x: Any) -> Any:
        return x

    def none(x: Any) -> None:
        pass

    found = Loop(none if result is None else first)(1 if result is None else result)
    assert (type(found), found) == (type(result), result)


def test_a_large_integer_is_whole_or_an_error() -> None:
    def twice(n: Any) -> Any:
        return n - 1

    loop = Loop(twice)
    with pytest.raises(OverflowError, match="big"):
        loop(2**63)
    assert loop(-(2**63) + 1) == -(2**63)
    assert loop(2**63 - 1) == 2**63 - 2
    with pytest.raises(OverflowError, match="big"):
        loop(2**64)


def test_wrong_arguments_are_errors(both: tuple[Loop, Any]) -> None:
    x, out = np.ones((2, 2)), np.ones(1)
    for _ in range(2):  # before something is compiled, and behind that
        with pytest.raises(TypeError, match="list"):
            both[0](x, [1.0], 2.0)
        with pytest.raises(TypeError, match="NoneType"):
            both[0](x, out, None)
        with pytest.raises(TypeError, match="requires"):
            both[0](x, out)
        with pytest.raises(numba.core.errors.NumbaError):
            both[0](x, 1.0, 2.0)
        with pytest.raises(numba.core.errors.NumbaError):
            both[0](x.astype(">f8"), out, 2.0)
        both[0](x, out, 2.0)
    x.flags.writeable = False
    with pytest.raises(numba.core.errors.NumbaError):
        both[0](x, x[0], 2.0)


def test_errors_of_compiled_code_are_those_of_numba() -> None:
    def copied(x: Any, y: Any, n: Any) -> None:
        x[:] = y
        if n > 0:
            raise KeyError("positive")
        x[:2] = np.empty(-n)[:2]

    loop = Loop(copied)
    with pytest.raises(ValueError, match="shapes"):
        loop(np.ones(2), np.ones(3), 0)
    with pytest.raises(KeyError, match="positive"):
        loop(np.ones(2), np.ones(2), 1)
    with pytest.raises(MemoryError, match="large"):
        loop(np.ones(2), np.ones(2), -(2**60) + 1)


def test_arrays_of_compiled_code_are_freed() -> None:
    def filled_with(n: Any, value: Any) -> Any:
        total = 0.0
        for i in range(1000):
            work = np.full(n, value + i)
            total += work[n // 2]
        return total

    loop = Loop(filled_with)
    before = 0
    for turn in range(4):
        assert loop(10**5, 1.0) == sum(range(1, 1001))
        if turn == 0:
            before = peak_resident_bytes()
    assert peak_resident_bytes() - before < 10**8  # of 2.4 GB that were allocated


def test_threads_call_at_once() -> None:
    """Also while one of them compiles, and with arguments that take turns."""

    def added(x: Any) -> Any:
        total = x[0]
        for i in range(1, len(x)):
            total += x[i]
        return float(total)

    loop, wrong = Loop(added), []

    def call() -> None:
        for i in range(2000):
            x = np.arange(50, dtype=("float64", "float32", "int64", "uint8")[i % 4])
            if loop(x) != 1225.0:
                wrong.append(i)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_references_are_balanced(both: tuple[Loop, Any]) -> None:
    x, out, number = np.ones((2, 2)), np.ones(1), 1234.5
    loop = Loop(weighted)
    loop(x, out, number)
    loop(out.reshape(1, 1), out, 2)
    before = [sys.getrefcount(one) for one in (x, out, number, x.dtype, NotImplemented)]
    for _ in range(100):
        loop(x, out, number)
        loop(out.reshape(1, 1), out, 2)
    assert [sys.getrefcount(one) for one in (x, out, number, x.dtype, NotImplemented)] == before


def test_threads_that_compile_at_once(filled: Path) -> None:
    """numba itself would fail: it registers what it knows in the first of them."""
    program = """
    import sys, threading, numpy as np, loops_of_test
    import dpca.kernels.compiling  # whose import would let one thread begin after the other
    sys.setswitchinterval(1e-5)
    barrier, found = threading.Barrier(8), []
    def call():
        barrier.wait()
        found.append(loops_of_test.scaled_sum(np.arange(5.0), 2.0, np.zeros(2)))
    threads = [threading.Thread(target=call) for _ in range(8)]
    [one.start() for one in threads], [one.join() for one in threads]
    print(found == [54.0] * 8)
    """
    for file in code_of(filled):
        file.unlink()
    assert run(filled, program) == "True"


def test_code_is_that_of_the_constants_of_its_time(filled: Path) -> None:
    """A constant that a test changed is not kept for later processes."""
    first = "import loops_of_test, numpy as np; loops_of_test.inner(1); loops_of_test.SCALE = 5"
    for file in code_of(filled):
        file.unlink()
    assert run(filled, f"{first}; print(loops_of_test.inner(1.0))") == "5.0"
    assert run(filled, "import loops_of_test; print(loops_of_test.inner(1.0))") == "3.0"
    for file in code_of(filled):
        file.unlink()
    run(filled)


@pytest.mark.parametrize(("constant", "other"), [("b'a'", "b'c'"), ("np.float32(1.5)", "np.float32(2.5)")])
def test_other_constants_change_the_code(filled: Path, constant: str, other: str) -> None:
    source = SOURCE.replace("SCALE = 3", f"SCALE = {constant}").replace("* x", "[0] * x" if "b'" in constant else "* x")
    module = filled / "loops_of_test.py"
    try:
        module.write_text(source)
        before = run(filled)
        module.write_text(source.replace(constant, other))
        assert run(filled) != before
    finally:
        module.write_text(SOURCE)
        run(filled)


def test_constants_whose_changes_are_not_seen_are_refused() -> None:
    with pytest.raises(TypeError, match="ndarray"):
        Loop(_with_an_array)(np.ones(2))


_CONSTANTS = np.ones(2)


def _with_an_array(x: Any) -> Any:
    return x[0] * _CONSTANTS[0]
