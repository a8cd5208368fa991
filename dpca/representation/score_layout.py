"""How scores are cut into chunks and shards (pure: integers in, integers out).

::

    one shard = all scores of some samples      one chunk = some of its samples, some of their components

                 components 0 1 | 2 3 | 4 5     a level is a run of components: who wants the first ones
    samples 0.. +---------+-----+-----+         reads the first levels of every shard and nothing else
                |         |     |     |
            64..+---------+-----+-----+         a shard is one file and the unit of writing, with the samples of
                |         |     |     |         a shard of the stack
                +---------+-----+-----+

What that costs, measured on a shard of 25.6 MB, the scores of 512 photographs in 25 x 25 cells with 20 components
each, in chunks of 64 samples (two shared cores, from the page cache, the best of several; milliseconds; Zarr's own
reading, and in brackets ours):

=====================  =======  =====  ========  =================  ==========
components of a chunk  chunk    write  read all  the first quarter  one sample
=====================  =======  =====  ========  =================  ==========
20                     3.2 MB   52     19 (6)    16 (7)             1.8
5                      .8 MB    54     41 (21)   6 (1)              2.2
2                      .3 MB    69     48 (40)   12 (5)             2.6
1                      .16 MB   76     62 (41)   11 (3)             3.8
=====================  =======  =====  ========  =================  ==========

Turning such a shard back into photographs takes half a second, so that eight levels cost little; more would gain
little. The file grows by 20 bytes a chunk.
"""

from __future__ import annotations

import math

from storage.layout import Layout

_CHUNK_BYTES = 4 * 2**20
_LEAST_CHUNK_BYTES = 2**16
_MOST_LEVELS = 8


def score_layout(rows: int, shape: tuple[int, ...], itemsize: int) -> Layout:
    """Return chunks and shards of scores.

    Parameters
    ----------
    rows : int
        Samples of a shard.
    shape : tuple of int
        Shape of one sample's scores, components last.
    itemsize : int
        Bytes of one score.

    Returns
    -------
    Layout
        A shard holds ``rows`` samples. All chunks of some samples, at most 4 MiB where ``rows`` can be halved so often,
        differ in their components only. Where no fitting number of components divides theirs, the last level is padded
        in the file.
    """
    unit = rows
    while unit % 2 == 0 and unit * math.prod(shape) * itemsize > _CHUNK_BYTES:
        unit //= 2
    *grid, k = shape
    level = _level_length(k, unit * math.prod(grid) * itemsize)
    return Layout((unit, *grid, level), (rows, *grid, -(-k // level) * level))


def _level_length(k: int, component_bytes: int) -> int:
    """Components of a level: as few padded, and as few read in vain by a reader of any number, as may be.

    Padding takes room for ever: never more than a tenth.
    """
    least = max(-(-k // _MOST_LEVELS), -(-_LEAST_CHUNK_BYTES // component_bytes))
    fitting = (c for c in range(min(least, k), k + 1) if 10 * (-k % c) <= k)
    return min(fitting, key=lambda c: (2 * (-k % c) + c, -c))
