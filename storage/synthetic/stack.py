"""Synthetic stacks: stack stores of a few hundred bytes. An image model computes their samples when they are read.

::

    lsun.zarr/
        zarr.json     attributes {"dpca": {"kind": "stack", ..., "synthetic": {"model": "portraits", "recipe": 1,
                                           "n_samples", "sample_shape", "seed", ...,
                                           "probe": <digest of three samples>}}}

The store has no other files. `dpca.storage.integrity.checked` adds the array ``samples``, so that all functions that
open a stack
store can open a synthetic stack. Other programs see an empty Zarr group, and read the samples from ``dpca::PATH``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dpca.storage.arrays.arrays import create_root
from dpca.storage.arrays.reading import group_facts, model_of, open_group, root_facts
from dpca.storage.errors import DataError, StoreError
from dpca.storage.integrity.manifest import SYNTHETIC_KEY
from dpca.storage.stack import STACK_KIND, STACK_VERSION, Stack, open_stack
from dpca.storage.synthetic.model import ImageModel
from dpca.storage.synthetic.models import is_as_stated, make_model, statement_of
from dpca.storage.transaction.workspace import Workspace, fingerprint_of


def create_synthetic(
    path: str | os.PathLike[str],
    model: str = "portraits",
    *,
    n_samples: int,
    sample_shape: Sequence[int] = (256, 256, 3),
    seed: int = 0,
    overwrite: bool = False,
    **parameters: Any,
) -> Stack:
    """Create a synthetic stack of any size: an image model computes its samples when they are read.

    Each sample is determined by the seed and its number. Samples are bit-identical on every machine and with every
    version of NumPy. All functions that read a stack store support a synthetic stack, also on the workers of a cluster.

    Parameters
    ----------
    path : path-like or URL
        Path of the store, a folder with one file of a few hundred bytes.
    model : {"portraits", "textures", "spiked", "moving"}
        The image model: aligned portraits and natural textures (``uint8``), the spiked covariance model, and fields
        that move from sample to sample (``float32``).
    n_samples : int
        Number of samples, up to 2**40.
    sample_shape : sequence of int
        Shape of a sample, with up to 2**22 values.
    seed : int
        From 0 to 2**64 - 1.
    overwrite : bool
        Whether to replace another Zarr store.
    **parameters
        Parameters of the model. With ``order="sorted"``, neighboring samples are similar, as in a folder for each
        person. "moving" has no order but time, and has a ``period``. "spiked" has ``n_spikes`` and ``sigma``.

    Returns
    -------
    Stack
        The opened stack. `open_synthetic` returns its model with the true mean and components.

    Raises
    ------
    DataError
        If the model is unknown, or a parameter is invalid.
    StoreError
        If the store cannot be written.

    Notes
    -----
    A sample costs two processor operations per value and component of the model: about 500 MB of ``uint8`` per second
    and core for a model with 16 components. Memory of a reading process: 4 bytes per value of a sample and component.
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
                source={"kind": SYNTHETIC_KEY, "name": model, "count": n_samples},
                synthetic=statement_of(model, made),
            )
            work.publish()
    return open_stack(path)


def open_synthetic(path: str | os.PathLike[str] | Stack) -> ImageModel:
    """Return the image model of a synthetic stack, with its true mean, components and eigenvalues.

    Parameters
    ----------
    path : path-like, URL or Stack
        The synthetic stack.

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
            f"'{stack.path}' has stored samples and no image model: create a synthetic stack with `dpca synthetic`"
        )
    return model


def is_synthetic(path: str | os.PathLike[str] | Stack) -> bool:
    """Return whether a store is a synthetic stack; False if there is no store."""
    if isinstance(path, Stack):
        return model_of(path.samples) is not None
    try:
        return SYNTHETIC_KEY in root_facts(open_group(path))
    except StoreError:
        return False


def wrong_samples(stack: Stack) -> list[str]:
    """Compute three samples of a synthetic stack again, and return the problems for `dpca.storage.verify`."""
    stated = group_facts(stack.samples)[SYNTHETIC_KEY]
    return [] if is_as_stated(stated, open_synthetic(stack)) else ["samples: differ from those at its creation"]
