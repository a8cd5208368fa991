"""Where machine code of loops finds the fields of arrays, and the name of its function."""

from __future__ import annotations

#: Bytes of a Python object before its own fields. The last of them are its type.
HEADER = object.__basicsize__
#: Where the fields of an array are behind that: the structure is a part of numpy's binary interface.
DATA, AXES, SHAPE, STRIDES, DTYPE, FLAGS = 0, 8, 16, 24, 40, 48
#: Flags on which machine code depends: contiguous in the order of C, or otherwise of Fortran; aligned, and writable.
IN_C, IN_F, OTHERS = 0x1, 0x2, 0x100 | 0x400
#: The function of an object file.
ENTRY = "dpca_entry"
