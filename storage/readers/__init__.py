"""Readers of sources, one format per file. `open_reader` chooses among them.

A reader returns encoded images or rows of an array in a fixed order. Readers are independent of stack stores. They use
Dask only for Dask arrays.
"""

from dpca.storage.readers.base import Block, Payload, Reader, Refused
from dpca.storage.readers.opening import Source, open_reader

__all__ = ["Block", "Payload", "Reader", "Refused", "Source", "open_reader"]
