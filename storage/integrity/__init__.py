"""Stores are verified on every read.

`manifest` binds every file of a finished store to its place, `checked` compares what is read with it.
`verify` reads a whole store and reports all damage.
"""
