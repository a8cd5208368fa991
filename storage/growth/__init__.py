"""Stacks that grow while others read them.

`appending` appends steps of a simulation, `arrivals` follows.
A count that is committed afterwards says how far a reader may go.
"""
