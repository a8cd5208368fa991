"""Base of the estimators of parts, such as cells, that multiply attributes by weights."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from dpca.models.base.store import StoredModel
from dpca.models.weights.with_weights import WithWeights
from dpca.parameters.cells import TARGETS
from dpca.partition.base import Partition
from dpca.representation.linear import LinearRepresentation
from dpca.storage.errors import DataError


class PartsWithWeights(WithWeights):
    """Base of the estimators of parts that multiply attributes by weights. Components are in memory."""

    flat_attributes: ClassVar[bool] = False

    _known_partition: Partition
    _basis: LinearRepresentation

    def _check_weights(self) -> None:
        super()._check_weights()
        for name in (*TARGETS, "sigma"):
            if getattr(self, name) is not None:
                raise DataError(f"{name} is in the units of samples without weights: omit it, or the weights")

    def _set_basis_of(self, partition: Partition, arrays: tuple[Any, Any]) -> None:
        """Set the basis of a partition from the mean and the components."""
        self._known_partition, self._basis = partition, self._with_weights(LinearRepresentation(partition, *arrays))

    def _restore_weights(self, stored: StoredModel) -> Self:
        super()._restore_weights(stored)
        self._set_basis_of(self._known_partition, self._arrays)
        return self
