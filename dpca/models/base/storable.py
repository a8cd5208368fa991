"""Models that are saved and loaded."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from sklearn.utils.validation import check_is_fitted

from dpca.models.base.labelled import Labels
from dpca.models.base.store import ESTIMATORS, Kept, StoredModel, load_any, save_model
from dpca.storage.remote.network import use_storage_options


class Storable:
    """Base of all models: a subclass says what a store keeps of it (`_kept`), and how it comes back (`_from_store`)."""

    #: What stores of it state to be, and the newest version of them that is read.
    store_kind: ClassVar[str]
    store_version: ClassVar[int] = 1

    sample_shape_: tuple[int, ...]

    _labels: Labels | None = None  # of the samples of the fit, where xarray named them

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "store_kind" in vars(cls):
            ESTIMATORS[cls.store_kind] = cls

    @abstractmethod
    def _kept(self) -> Kept:
        """Return what a store holds of this model."""

    @classmethod
    @abstractmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        """Return the model that a store holds.

        Raises
        ------
        KeyError, TypeError, ValueError
            If what it states makes no sense.
        """

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the model to a Zarr group, which appears under ``path`` only when it is whole; see `load`.

        Parameters
        ----------
        path : path-like or URL
        overwrite : bool
            Whether another store may be replaced.
        storage_options : mapping, optional
            How ``path`` is reached where it is in an object store, see `dpca.storage.use_storage_options`.

        Raises
        ------
        StoreError
            If ``path`` exists and is something else, unless it may be replaced (``overwrite``).
        """
        check_is_fitted(self)
        use_storage_options(storage_options, path)
        save_model(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Self:
        """Read a model that `save` wrote; nothing in it is executed.

        Parameters
        ----------
        path : path-like or URL
        storage_options : mapping, optional
            How ``path`` is reached where it is in an object store, see `dpca.storage.use_storage_options`.

        Raises
        ------
        StoreError
            If there is no such model, or it is damaged or comes from a newer version.
        """
        use_storage_options(storage_options, path)
        model: Self = load_any(path, cls)
        return model
