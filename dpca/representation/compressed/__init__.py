"""Compressed stores: quantized scores that open as the original array.

`compressed` reads them, `compressed_form` has their arrays and settings, `lazy_views` the lazy arrays.
`file_system` opens them as ordinary Zarr by the URL ``dpca::PATH``.
"""
