"""Loops that numba compiles once, and that later processes load without numba.

::

    loop(x, n)  ->  a builtin function of machine code, which checks the types of its arguments
                            | other types
                    object file in the cache  ->  linked by llvmlite
                            | none, or of other sources
                    `dpca.kernels.compiling` imports numba, compiles, and writes the file

A first call by numba takes several times as long, because numba registers all its types before it uses what it cached.
Where this way does not work, and if any environment variable of numba's is set, numba calls the loops.

Import this module only in functions that need a loop: it loads LLVM.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numpy as np
from llvmlite import binding as llvm

from dpca.kernels.array_fields import AXES, DATA, DTYPE, ENTRY, FLAGS, HEADER, IN_C, IN_F, OTHERS, SHAPE, STRIDES

#: Whether numba calls the loops, as its variables, such as ``NUMBA_DISABLE_JIT``, may ask.
BY_NUMBA = any(name.startswith("NUMBA_") for name in os.environ)
# What object files may call. With other symbols of a process, numba's code could mean something else than the process.
_CALLED = (
    *("malloc", "free", "memset", "memcpy", "memmove", "bzero", "__bzero"),
    *("PyErr_Occurred", "PyErr_SetObject", "PyErr_SetString", "PyEval_RestoreThread", "PyEval_SaveThread"),
    *("PyBool_FromLong", "PyFloat_AsDouble", "PyFloat_FromDouble", "PyLong_AsLongLong", "PyLong_FromLongLong"),
    *("PyLong_FromVoidPtr", "PyObject_Hash", "PyObject_IsTrue", "PyTuple_Pack", "PyUnicode_FromKindAndData"),
    *("Py_DecRef", "Py_IncRef"),
    *(
        f"{name}{kind}"
        for name in ("ceil", "exp", "floor", "log", "log10", "log2", "rint", "trunc")
        for kind in ("", "f")
    ),
)
_DIGEST_BYTES = 32
_FASTCALL = 0x80
# Types of numbers that loops take.
_NUMBERS = {
    bool,
    int,
    float,
    np.bool_,
    np.float32,
    np.float64,
    *(np.dtype(f"{kind}{n}").type for kind in "iu" for n in (1, 2, 4, 8)),
}
_numbers = count()


class RaisedInLoop(Exception):
    """An exception of machine code, by the address of numba's description."""


class _Definition(ctypes.Structure):
    """``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


class Deferred:
    """What `deferred` returns."""

    def __init__(self, make: Any, *arguments: Any) -> None:
        self.function, self.options = make, arguments

    @cached_property
    def by_numba(self) -> Any:
        """What numba uses."""
        return self.function(*self.options)


class Loop:
    """A compiled function of arrays and numbers, without keywords. It releases Python's global lock.

    Parameters
    ----------
    function : function
    **options
        Of `numba.njit`.
    """

    def __init__(self, function: Any, **options: Any) -> None:
        self.function = self.py_func = self.__wrapped__ = function
        self.options, self.__doc__ = options, function.__doc__
        self._entries: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._last: Callable[..., Any] = lambda *_: NotImplemented

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, compiled for the types of the arguments."""
        try:
            result = self._last(*arguments)
            return self._call(arguments) if result is NotImplemented else result
        except RaisedInLoop as raised:
            from dpca.kernels.compiling import exception_at

            raise exception_at(raised.args[0]) from None

    def _call(self, arguments: tuple[Any, ...]) -> Any:
        """Call the function for types other than those of the last call."""
        plain = [_plain(one) if isinstance(one, np.ndarray) else one for one in arguments]
        kinds = tuple(_kind(one) if isinstance(one, np.ndarray) else type(one) for one in plain)
        self._last = entry = self._entries.get(kinds) or self._entry(kinds, plain)
        result = entry(*plain)
        return self.by_numba(*plain) if result is NotImplemented else result  # a dtype has several addresses

    @cached_property
    def by_numba(self) -> Any:
        """The function as numba compiles it for calls by other loops."""
        from dpca.kernels.compiling import inner

        return inner(self)

    def used(self) -> dict[str, Any]:
        """Return the globals that the function names."""
        return _used(self.function)

    def _sources(self) -> bytes:
        """Return a digest of all that the machine code depends on, but types and processor."""
        found: list[Any] = [self]
        parts = []
        for one in found:  # which grows
            function = one if isinstance(one, FunctionType) else one.function
            known = {name: _origin(value) for name, value in _used(function).items()}
            found += [value for value in known.values() if isinstance(value, _SOURCES) and value not in found]
            others = [(name, value) for name, value in known.items() if not isinstance(value, _SOURCES)]
            parts.append((_description(function.__code__), getattr(one, "options", None), others))
        return hashlib.sha256(repr(parts).encode()).digest()

    def _entry(self, kinds: tuple[Any, ...], arguments: list[Any]) -> Callable[..., Any]:
        """Return the machine code for types of arguments: known, cached, or compiled now."""
        names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
        if len(kinds) != len(names):
            raise TypeError(f"{self.function.__name__} requires {len(names)} arguments, got {len(kinds)}")
        for name, kind in zip(names, kinds, strict=True):
            if not isinstance(kind, tuple) and kind not in _NUMBERS:
                raise TypeError(f"'{name}' of {self.function.__name__} is a {kind.__name__}: give an array or a number")
        file, sources = self._file(kinds), self._sources()
        content = None if file is None else _read(file, sources)
        entry = None if not content else self._linked(content, kinds)
        if content is None:
            from dpca.kernels import compiling

            content = compiling.object_file(self, arguments, kinds)
            entry = self._linked(content, kinds) if content else None
            if file is not None and (entry or content == b""):  # without code, so that others do not try
                compiling.write(file, sources + hashlib.sha256(content or b"").digest() + (content or b""))
        if entry is None:
            from dpca.kernels.compiling import cached_by_numba, with_inner

            entry = cached_by_numba(with_inner(self), self.options)
        self._entries[kinds] = entry
        return entry

    def _linked(self, content: bytes, kinds: tuple[Any, ...]) -> Callable[..., Any] | None:
        """Return the function of an object file, or None if it cannot be linked."""
        objects = {"array": np.ndarray, "none": None, "other": NotImplemented, "raised": RaisedInLoop}
        objects |= {f"kind{i}": kind[0] if isinstance(kind, tuple) else kind for i, kind in enumerate(kinds)}
        builder = llvm.JITLibraryBuilder().add_object_img(content).export_symbol(ENTRY)
        for name, address in {**_symbols(), **{f"dpca_{name}": id(one) for name, one in objects.items()}}.items():
            builder.import_symbol(name, address)
        try:
            library = builder.link(_linker(), f"loop {next(_numbers)}")
        except RuntimeError:
            return None
        definition = _Definition(self.function.__name__.encode(), library[ENTRY], _FASTCALL, None)
        create = ctypes.pythonapi.PyCMethod_New
        create.restype = ctypes.py_object
        create.argtypes = [ctypes.POINTER(_Definition), ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p]
        # The function holds what it points to.
        return create(definition, (library, definition, objects), None, None)

    def _file(self, kinds: tuple[Any, ...]) -> Path | None:
        """Return the object file in the cache. It is replaced if sources change."""
        folder = _folder(os.path.dirname(self.function.__globals__.get("__file__") or ""))
        slot = hashlib.sha256(_ground() + repr(kinds).encode()).hexdigest()[:24]
        return folder and folder / f"{self.function.__module__}.{self.function.__name__}-{slot}.loop"


# What has sources of its own.
_SOURCES = (Loop, Deferred, FunctionType)


def compiled(function: Any, **options: Any) -> Any:
    """Return a function as a `Loop`, or as numba's function if numba's variables are set."""
    if not BY_NUMBA:
        return Loop(function, **options)
    from dpca.kernels.compiling import cached_by_numba

    return cached_by_numba(function, options)


def reordered(function: Any) -> Any:
    """Compile a function as `compiled`, with sums in the order that suits the processor, as in BLAS."""
    return compiled(function, fastmath={"reassoc": True, "contract": True})


def deferred(make: Any, *arguments: Any) -> Any:
    """Return ``make(*arguments)``, such as an intrinsic of numba, for compiled functions. It is made when they are."""
    return make(*arguments) if BY_NUMBA else Deferred(make, *arguments)


def fetch_of() -> Any:
    """Return a function for compiled code, (row, i), that begins to load the line of the cache with ``row[i]``."""
    from llvmlite import ir
    from numba.core import types
    from numba.extending import intrinsic

    byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        to_write, near, of_data = i32(1), i32(3), i32(1)
        builder.call(prefetch, [builder.bitcast(builder.gep(data, [args[1]]), byte), to_write, near, of_data])
        return context.get_dummy_value()

    def fetch(typing: Any, row: Any, i: Any) -> Any:
        return types.void(row, types.intp), generate

    return intrinsic(fetch)


fetch = deferred(fetch_of)


def processor() -> tuple[str, str]:
    """Return the name and the features of this processor, in LLVM's notation. Without a compiler, none is used."""
    if not BY_NUMBA:
        return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    from numba.core import codegen, config

    chosen = [getattr(config, name, None) for name in ("CPU_NAME", "CPU_FEATURES")]
    features = chosen[1] or codegen.get_host_cpu_features()
    return chosen[0] or llvm.get_host_cpu_name(), "" if getattr(config, "DISABLE_JIT", False) else features


def _used(function: Any) -> dict[str, Any]:
    """Return the globals that a function names."""
    known = function.__globals__
    return {name: known[name] for name in sorted(_names(function.__code__)) if name in known}


def _origin(value: Any) -> Any:
    """Return a global as it identifies itself: what has sources as it is, and a constant or a library by its name.

    Raises
    ------
    TypeError
        If changes of a value cannot be seen.
    """
    if isinstance(value, Loop | Deferred):
        return value
    if isinstance(value, FunctionType) and value.__module__.startswith("dpca."):
        return value
    if isinstance(value, ModuleType | type) or hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"
    if value is None or isinstance(value, int | float | str | bytes | complex | tuple | np.generic | np.dtype):
        return repr(value)
    raise TypeError(f"a compiled loop uses a global of type {type(value).__name__}: give a number, a text or a tuple")


def _names(code: CodeType) -> set[str]:
    return {*code.co_names}.union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _description(code: CodeType) -> tuple[Any, ...]:
    """Return what the code does, but not where it stands."""
    inner = [_description(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, inner


@cache
def _ground() -> bytes:
    """Return what all machine code depends on: versions, and the processor."""
    spec, numba = find_spec("numba"), b""
    with suppress(OSError):
        numba = Path(str(spec and spec.origin)).with_name("_version.py").read_bytes()
    ours = hashlib.sha256()
    for name in ("array_fields", "compiled", "compiling"):
        with suppress(OSError):
            ours.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return repr((ours.digest(), sys.version, numba, llvmlite.__version__, np.__version__, HEADER, processor())).encode()


@cache
def _folder(sources: str) -> Path | None:
    """Return a folder that this user can write, and nobody else: its files are executed. None if there is none."""
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for folder, made in ((Path(sources, "__pycache__"), False), (Path(user, "dpca"), True)):
        with suppress(OSError):
            if not folder.is_absolute():
                continue
            if made:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if stat.S_ISDIR((found := folder.lstat()).st_mode) and _is_private(found) and os.access(folder, os.W_OK):
                return folder
    return None


def _is_private(found: os.stat_result) -> bool:
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def _read(file: Path, sources: bytes) -> bytes | None:
    """Return the content of a file in the cache, or None if it is missing, damaged, or made from other sources."""
    try:
        with file.open("rb") as stream:
            if not _is_private(os.fstat(stream.fileno())):
                return None
            found = stream.read()
    except OSError:
        return None
    made_from, digest, content = (
        found[:_DIGEST_BYTES],
        found[_DIGEST_BYTES:][:_DIGEST_BYTES],
        found[2 * _DIGEST_BYTES :],
    )
    return content if made_from == sources and digest == hashlib.sha256(content).digest() else None


def _plain(array: Any) -> Any:
    """Return an array with the one dtype of its kind, which machine code compares by address, and of no subclass."""
    dtype = np.dtype(array.dtype.type)
    array = array if type(array) is np.ndarray else array.view(np.ndarray)
    return array if array.dtype is dtype or array.dtype != dtype else array.view(dtype)


def _kind(array: Any) -> tuple[Any, int, int]:
    """Return what of an array machine code depends on."""
    flags = array.flags.num
    return array.dtype, array.ndim, flags & (OTHERS | IN_C if flags & IN_C else OTHERS | IN_F)


@cache
def _symbols() -> dict[str, int]:
    """Return the addresses of what object files may refer to."""
    process, found = ctypes.CDLL(None), {"PyExc_RuntimeError": id(RuntimeError)}
    for name in _CALLED:
        with suppress(AttributeError):
            found[name] = ctypes.cast(getattr(process, name), ctypes.c_void_p).value or 0
    return found


@cache
def _linker() -> Any:
    """Return LLVM's linker.

    Raises
    ------
    RuntimeError
        If there is none, or arrays are not stored as expected.
    """
    array = np.zeros((2, 3))[:, ::2]
    at = id(array) + HEADER
    found = [ctypes.c_void_p.from_address(at + field).value or 0 for field in (-8, DATA, SHAPE, STRIDES, DTYPE)]
    numbers = [ctypes.sizeof(ctypes.c_void_p)]
    numbers += [ctypes.c_int.from_address(at + field).value for field in (AXES, FLAGS)]
    if found[:2] + found[4:] + numbers != [id(np.ndarray), array.ctypes.data, id(array.dtype), 8, 2, array.flags.num]:
        raise RuntimeError("arrays of this version of numpy are unknown")
    if [tuple((ctypes.c_int64 * 2).from_address(one)) for one in found[2:4]] != [array.shape, array.strides]:
        raise RuntimeError("arrays of this version of numpy are unknown")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(suppress_errors=True)
