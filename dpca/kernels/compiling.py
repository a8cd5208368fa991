"""Compiles loops with numba, as object files that are linked and called without it; see `dpca.kernels.compiled`.

Only processes that compile import this module, since it imports numba.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
from llvmlite import binding as llvm
from llvmlite import ir
from numba.core import config, serialize, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import nrtdynmod
from numba.np.arrayobj import populate_array

from dpca.kernels.array_fields import AXES, DATA, DTYPE, ENTRY, FLAGS, HEADER, IN_C, IN_F, OTHERS, SHAPE, STRIDES

_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
_INT, _POINTER = ir.IntType(32), _BYTE.as_pointer()
_POINTERS = _POINTER.as_pointer()
# What loops return, by its name in numba, and how Python's objects are made of it.
_RESULTS: dict[str, Any] = {
    "none": None,
    "float64": ("PyFloat_FromDouble", lambda builder, value: value),
    "int64": ("PyLong_FromLongLong", lambda builder, value: value),
    "bool": ("PyBool_FromLong", lambda builder, value: builder.zext(value, _WORD)),
}
# What numba's code calls for arrays of its own. Its code counts references in the first word, and data is the fourth.
_ALLOCATED = "{i64, i8*, i8*, i8*, i64}"
_ALLOCATE = """
declare i8* @malloc(i64)
declare void @free(i8*)
define i8* @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %wide = zext i32 %align to i64
  %more = add i64 %wide, 40
  %total = add i64 %size, %more
  %fits = icmp uge i64 %total, %size
  br i1 %fits, label %allocate, label %fail
allocate:
  %made = call i8* @malloc(i64 %total)
  %none = icmp eq i8* %made, null
  br i1 %none, label %fail, label %fill
fill:
  %address = ptrtoint i8* %made to i64
  %last = add i64 %address, %more
  %over = urem i64 %last, %wide
  %data = sub i64 %last, %over
  %words = bitcast i8* %made to i64*
  store i64 1, i64* %words
  %place = getelementptr i64, i64* %words, i64 3
  store i64 %data, i64* %place
  ret i8* %made
fail:
  ret i8* null
}
define i8* @NRT_MemInfo_alloc(i64 %size) {
  %made = call i8* @NRT_MemInfo_alloc_aligned(i64 %size, i32 16)
  ret i8* %made
}
define void @NRT_MemInfo_call_dtor(i8* %made) {
  call void @free(i8* %made)
  ret void
}
define i8* @NRT_Allocate(i64 %size) {
  %made = call i8* @malloc(i64 %size)
  ret i8* %made
}
define void @NRT_Free(i8* %made) {
  call void @free(i8* %made)
  ret void
}
"""


_njit = partial(numba.njit, nogil=True, error_model="numpy")


def cached_by_numba(function: Any, options: dict[str, Any]) -> Any:
    """Return a function as numba compiles, caches and calls it."""
    try:
        return _njit(**options, cache=True)(function)
    except RuntimeError:  # no cache folder is writable
        return _njit(**options)(function)


def inner(loop: Any) -> Any:
    """Return a loop as numba's function, for calls by loops."""
    return _njit(**loop.options)(with_inner(loop))


def with_inner(loop: Any) -> Any:
    """Return the function of a loop with numba's functions for what it calls."""
    function, known = loop.function, {**loop.function.__globals__}
    known |= {name: one.by_numba for name, one in loop.used().items() if hasattr(one, "by_numba")}
    again = FunctionType(function.__code__, known, function.__name__, function.__defaults__)
    again.__qualname__, again.__module__ = function.__qualname__, function.__module__
    return again


@global_compiler_lock  # type: ignore[untyped-decorator]
def object_file(loop: Any, arguments: list[Any], kinds: tuple[Any, ...]) -> bytes | None:
    """Return the machine code of a loop for these arguments; nothing if only numba can call it.

    numba's code is as it is, and `ENTRY` calls it by numba's conventions. None if numba is configured otherwise than
    other processes may be, or a version of numba lacks what this needs.
    """
    if any(getattr(config, name) for name in ("DISABLE_JIT", "CPU_NAME", "CPU_FEATURES")):
        return None
    try:
        return _made(loop, arguments, kinds)
    except (AttributeError, ImportError, RuntimeError):
        return None


def _made(loop: Any, arguments: list[Any], kinds: tuple[Any, ...]) -> bytes:
    function: Any = _njit(**loop.options, no_cpython_wrapper=True, no_cfunc_wrapper=True)(with_inner(loop))
    # A large integer would have another type than others.
    given = (types.int64 if kind is int else numba.typeof(one) for one, kind in zip(arguments, kinds, strict=True))
    made = function._compiler.compile(tuple(given), None)
    known = str(nrtdynmod._meminfo_struct_type) == _ALLOCATED and str(types.intp) == "int64"
    if not known or str(made.signature.return_type) not in _RESULTS:
        return b""
    codegen, module = made.library.codegen, made.library._final_module.clone()
    for text in (_Entry(made, kinds).module, _ALLOCATE):
        module.link_in(llvm.parse_assembly(str(text)))
    module.verify()
    return codegen._tm.emit_object(module)


class _Entry:
    """The builtin function of a loop, in ``module``: it returns NotImplemented if arguments are of other types."""

    def __init__(self, made: Any, kinds: tuple[Any, ...]) -> None:
        self._context, described, signature = made.target_context, made.fndesc, made.signature
        self.module = made.library.codegen._create_empty_module("entry")
        kind = self._context.call_conv.get_function_type(described.restype, described.argtypes)
        loop = ir.Function(self.module, kind, described.llvm_func_name)
        entry = ir.Function(self.module, ir.FunctionType(_POINTER, [_POINTER, _POINTERS, _WORD]), ENTRY)
        self._other = entry.append_basic_block("other")
        self._builder = builder = ir.IRBuilder(entry.append_basic_block("begin"))
        entry.blocks.insert(0, entry.blocks.pop())
        self._require(builder.icmp_signed("==", entry.args[2], _WORD(len(kinds))))
        given = [builder.load(builder.gep(entry.args[1], [_WORD(i)])) for i in range(len(kinds))]
        for i, kind in enumerate(kinds):
            self._check(given[i], kind, self._object(f"kind{i}"))
        values = [self._value(kind, value) for kind, value in zip(signature.args, given, strict=True)]
        thread = self._call("PyEval_SaveThread", _POINTER)
        status, value = self._context.call_conv.call_function(builder, loop, described.restype, signature.args, values)
        self._call("PyEval_RestoreThread", ir.VoidType(), thread)
        with builder.if_then(status.is_error, likely=False):
            address = builder.bitcast(status.excinfoptr, _POINTER)
            number = self._call("PyLong_FromVoidPtr", _POINTER, address)
            self._call("PyErr_SetObject", ir.VoidType(), self._object("raised"), number)
            self._call("Py_DecRef", ir.VoidType(), number)
            builder.ret(_POINTER(None))
        maker = _RESULTS[str(described.restype)]
        if maker is None:
            self._return("none")
        else:
            builder.ret(self._call(maker[0], _POINTER, maker[1](builder, value)))
        builder.position_at_end(self._other)
        self._return("other")

    def _object(self, name: str) -> Any:
        """Return the address of an object of Python, which is imported when the code is linked."""
        name = f"dpca_{name}"
        found = self.module.globals.get(name) or ir.GlobalVariable(self.module, _BYTE, name)
        found.linkage = "external"
        return found

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        """Call a function of Python's stable interface."""
        kind = ir.FunctionType(result, [one.type for one in arguments])
        function = self.module.globals.get(name) or ir.Function(self.module, kind, name)
        return self._builder.call(function, arguments)

    def _return(self, name: str) -> None:
        found = self._object(name)
        self._call("Py_IncRef", ir.VoidType(), found)
        self._builder.ret(found)

    def _require(self, condition: Any) -> None:
        following = self._builder.append_basic_block()
        self._builder.cbranch(condition, following, self._other)
        self._builder.position_at_end(following)

    def _field(self, value: Any, at: int, kind: Any) -> Any:
        place = self._builder.gep(value, [_WORD(HEADER + at)])
        return self._builder.load(self._builder.bitcast(place, kind.as_pointer()))

    def _check(self, value: Any, kind: Any, expected: Any) -> None:
        """Return from the entry if an argument is of another type."""
        builder, is_array = self._builder, isinstance(kind, tuple)
        of = self._object("array") if is_array else expected
        self._require(builder.icmp_unsigned("==", self._field(value, -8, _POINTER), of))
        if is_array:
            self._require(builder.icmp_unsigned("==", self._field(value, DTYPE, _POINTER), expected))
            self._require(builder.icmp_signed("==", self._field(value, AXES, _INT), _INT(kind[1])))
            asked = OTHERS | IN_C | (0 if kind[2] & IN_C else IN_F)
            flags = builder.and_(self._field(value, FLAGS, _INT), _INT(asked))
            self._require(builder.icmp_signed("==", flags, _INT(kind[2])))

    def _value(self, kind: Any, value: Any) -> Any:
        """Return what numba's code needs of an argument, which the caller keeps."""
        builder, target = self._builder, self._context.get_value_type(kind)
        if isinstance(kind, types.Array):
            return self._array(kind, value)
        if isinstance(kind, types.Float):
            found = self._call("PyFloat_AsDouble", ir.DoubleType(), value)
            return found if found.type == target else builder.fptrunc(found, target)
        if isinstance(kind, types.Boolean):
            return builder.trunc(self._call("PyObject_IsTrue", _INT, value), target)
        found = self._call("PyLong_AsLongLong", _WORD, value)
        failed = builder.icmp_unsigned("!=", self._call("PyErr_Occurred", _POINTER), _POINTER(None))
        with builder.if_then(failed, likely=False):
            builder.ret(_POINTER(None))
        return found if found.type == target else builder.trunc(found, target)

    def _array(self, kind: Any, value: Any) -> Any:
        context, builder = self._context, self._builder
        lengths, steps = (
            [
                builder.load(builder.gep(self._field(value, at, _WORD.as_pointer()), [_WORD(i)]))
                for i in range(kind.ndim)
            ]
            for at in (SHAPE, STRIDES)
        )
        array = context.make_array(kind)(context, builder)
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        data = self._field(value, DATA, _POINTER)
        populate_array(array, builder.bitcast(data, array.data.type), lengths, steps, size, None)
        return array._getvalue()


def write(file: Path, content: bytes) -> None:
    """Write a file, or replace it at once. Nothing is written if the disk is full."""
    with suppress(OSError):
        number, temporary = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(number, "wb") as stream:
                stream.write(content)
            os.replace(temporary, file)
        except OSError:
            os.unlink(temporary)


class _Description(ctypes.Structure):
    """How numba's code describes an exception: pickled, and values that were not known when it was compiled."""

    _fields_ = (
        ("pickled", ctypes.c_void_p),
        ("length", ctypes.c_int32),
        ("values", ctypes.c_void_p),
        ("values_of", ctypes.c_void_p),
        ("n_values", ctypes.c_int32),
    )


def exception_at(address: int) -> Exception:
    """Return the exception that numba's code describes at this address. Only numba itself can make its values."""
    found = _Description.from_address(address)
    kind, arguments, _ = serialize.loads(ctypes.string_at(found.pickled, found.length))
    if found.n_values:
        arguments = ("the shapes of arrays do not fit each other",)
    return kind(*(arguments or ()))
