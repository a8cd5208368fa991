"""Readers of sources, one format a file; `open_reader` chooses among them.

Readers deliver encoded images or rows of an array in a fixed order, and know nothing of stack stores or Dask, but for
arrays that come in it.
"""

from dpca.storage.readers.base import Block, Payload, Reader, Refused
from dpca.storage.readers.opening import Source, open_reader

__all__ = ["Block", "Payload", "Reader", "Refused", "Source", "open_reader"]
