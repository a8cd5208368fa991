"""Virtual stacks: stack stores of some hundred bytes, whose samples an image model makes when they are read.

::

    lsun.zarr/
        zarr.json     attributes {"dpca": {"kind": "stack", ..., "virtual": {"model": "portraits", "recipe": 1,
                                           "n_samples", "sample_shape", "seed", ...,
                                           "probe": <digest of three samples>}}}

There is nothing else. `dpca.storage.checked` puts the array ``samples`` beside it, so that what opens a stack store
opens this one, too. Others' Zarr sees an empty group, and ``dpca::PATH`` shows it the samples.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dpca.storage.arrays import create_root
from dpca.storage.errors import DataError
from dpca.storage.manifest import VIRTUAL_KEY
from dpca.storage.reading import group_facts, model_of
from dpca.storage.stack import STACK_KIND, STACK_VERSION, Stack, open_stack
from dpca.storage.virtual.model import ImageModel
from dpca.storage.virtual.models import is_as_stated, make_model, statement_of
from dpca.storage.workspace import Workspace, fingerprint_of


def create_virtual(
    path: str | os.PathLike[str],
    model: str = "portraits",
    *,
    n_samples: int,
    sample_shape: Sequence[int] = (256, 256, 3),
    seed: int = 0,
    overwrite: bool = False,
    **parameters: Any,
) -> Stack:
    """Make a stack of any size that takes no room: an image model makes its samples whenever they are read.

    The samples follow from the seed and from their numbers alone, and their bytes are the same on every machine and
    with every version of numpy. Whatever reads a stack store reads this one, here and on the workers of a cluster.

    Parameters
    ----------
    path : path-like or URL
        Where the store appears, a folder with one file of some hundred bytes.
    model : {"portraits"}
        What the samples are, see `dpca.storage.virtual.models.MODELS`.
    n_samples : int
        Up to 2**40.
    sample_shape : sequence of int
        Up to 2**22 values.
    seed : int
        From 0 to 2**64 - 1.
    overwrite : bool
        Whether another Zarr store may be replaced.
    **parameters
        Of the model: ``order="sorted"`` makes samples that follow each other alike, as in folders of persons.

    Returns
    -------
    Stack
        Opened; `open_virtual` returns the model, which knows the true mean and components.

    Raises
    ------
    DataError
        If there is no such model, or a parameter makes no sense.
    StoreError
        If the store cannot be written.

    Notes
    -----
    Making samples costs two operations of a processor a value and component of the model: some 500 MB a second and core
    of ``uint8`` where the model has 24. A process that reads holds 4 bytes a value of a sample and component.
    """
    made = make_model(model, {"n_samples": n_samples, "sample_shape": sample_shape, "seed": seed, **parameters})
    fingerprint = fingerprint_of(STACK_KIND, STACK_VERSION, made.fingerprint())
    with Workspace(path, kind=STACK_KIND, fingerprint=fingerprint, overwrite=overwrite) as work:
        if work.state != "complete":
            create_root(
                work.store,
                kind=STACK_KIND,
                fingerprint=fingerprint,
                version=STACK_VERSION,
                axes=["sample", *made.axes],
                data_range=list(made.data_range),
                source={"kind": VIRTUAL_KEY, "name": model, "count": n_samples},
                virtual=statement_of(model, made),
            )
            work.publish()
    return open_stack(path)


def open_virtual(path: str | os.PathLike[str] | Stack) -> ImageModel:
    """Return the image model behind a virtual stack: its true mean, components and eigenvalues.

    Parameters
    ----------
    path : path-like, URL or Stack

    Raises
    ------
    DataError
        If the samples of the stack are stored, or there is no stack.
    StoreError
        If the store cannot be read.
    """
    stack = path if isinstance(path, Stack) else open_stack(path)
    if (model := model_of(stack.samples)) is None:
        raise DataError(
            f"the samples of '{stack.path}' are stored, and follow from no model: `dpca virtual` makes a stack of one"
        )
    return model


def is_virtual(stack: Stack) -> bool:
    """Return whether the samples of a stack are made when they are read."""
    return model_of(stack.samples) is not None


def wrong_samples(stack: Stack) -> list[str]:
    """Return what `dpca.storage.verify` says of a virtual stack, after three samples were made again."""
    stated = group_facts(stack.samples)[VIRTUAL_KEY]
    return [] if is_as_stated(stated, open_virtual(stack)) else ["samples: are not those of when the stack was made"]
