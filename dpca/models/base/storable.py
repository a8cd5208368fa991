"""Models that are saved and loaded."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from sklearn.utils.validation import check_is_fitted

from dpca.models.base.labelled import Labels
from dpca.models.base.store import ESTIMATORS, StoreContents, StoredModel, load_any, save_model
from dpca.storage.remote.network import use_storage_options


class Storable:
    """Base of all models: a subclass defines the content of its store (`_to_store`), and reads it (`_from_store`)."""

    #: The kind of its stores, and their newest supported version.
    store_kind: ClassVar[str]
    store_version: ClassVar[int] = 1
    #: The version of stores with weights of attributes, which programs from before would ignore; 0 without such stores.
    weighted_version: ClassVar[int] = 0
    #: Parameters that its stores contain in any case and first, whatever their declarations state.
    stored_first: ClassVar[tuple[str, ...]] = ()

    sample_shape_: tuple[int, ...]

    _labels: Labels | None = None  # labels of the samples of the fit, if they have names

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "store_kind" in vars(cls):
            ESTIMATORS[cls.store_kind] = cls

    @abstractmethod
    def _to_store(self) -> StoreContents:
        """Return the content of a store of this model."""

    @classmethod
    @abstractmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        """Return the model in a store.

        Raises
        ------
        KeyError, TypeError, ValueError
            If its facts are invalid.
        """

    def stored_at(self, path: str | os.PathLike[str]) -> None:
        """Read arrays on disk, if this model has any, from its store at ``path`` from now on."""

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the model to a Zarr group, which appears at ``path`` only when it is complete; see `load`.

        Parameters
        ----------
        path : path-like or URL
        overwrite : bool
            Whether to replace another store at ``path``.
        storage_options : mapping, optional
            Options for object storage, see `dpca.storage.use_storage_options`.

        Raises
        ------
        StoreError
            If ``path`` exists and holds other content, unless ``overwrite`` is given.
        """
        check_is_fitted(self)
        use_storage_options(storage_options, path)
        save_model(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Self:
        """Read a model written by `save`; no code in it is executed.

        Parameters
        ----------
        path : path-like or URL
        storage_options : mapping, optional
            Options for object storage, see `dpca.storage.use_storage_options`.

        Raises
        ------
        StoreError
            If there is no such model, it is damaged, or its version is newer.
        """
        use_storage_options(storage_options, path)
        model: Self = load_any(path, cls)
        return model
