"""All image models by name, and their description in a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from dpca.storage.errors import DataError, StoreError
from dpca.storage.synthetic.model import ImageModel
from dpca.storage.synthetic.moving import Moving
from dpca.storage.synthetic.portraits import DrawnPortraits
from dpca.storage.synthetic.spiked import Spiked
from dpca.storage.synthetic.textures import Textures

MODELS: dict[str, type[ImageModel]] = {
    "portraits": DrawnPortraits,
    "textures": Textures,
    "spiked": Spiked,
    "moving": Moving,
}

# The key of the digest of some samples, which `dpca.storage.verify` compares.
_PROBE = "probe"
# Types of parameters in JSON. Booleans do not count as integers.
_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "str": (str,)}


def make_model(name: Any, parameters: Mapping[str, Any]) -> ImageModel:
    """Return an image model.

    Raises
    ------
    DataError
        If the name or a parameter is unknown, or a parameter has a wrong type or an invalid value.
    """
    model = MODELS.get(name) if isinstance(name, str) else None
    if model is None:
        raise DataError(f"there is no image model {str(name)[:40]!r}: choose one of {', '.join(MODELS)}")
    known = {one.name: str(one.type) for one in fields(model)}
    for parameter, value in parameters.items():
        if parameter not in known:
            raise DataError(f"the model {name!r} has no parameter {parameter[:40]!r}: it has {', '.join(known)}")
        shape = parameter == "sample_shape"
        if shape and not isinstance(value, list | tuple):
            raise DataError(f"sample_shape is {str(value)[:40]!r}: give the lengths of the axes")
        wanted = (int,) if shape else _TYPES[known[parameter]]
        for one in value if shape else (value,):
            if not isinstance(one, wanted) or isinstance(one, bool):
                raise DataError(
                    f"{parameter} is {str(value)[:40]!r}: give {'whole numbers' if shape else known[parameter]}"
                )
    return model(**{**parameters, "sample_shape": tuple(parameters["sample_shape"])})


def statement_of(name: str, model: ImageModel) -> dict[str, Any]:
    """Return the description of a model in a store."""
    return {"model": name, "recipe": model.recipe, **model.stated(), _PROBE: model.probe()}


def stated_model(stated: Any, where: str) -> ImageModel:
    """Return the model in the metadata of a store. Equal models are one object, so their caches are shared.

    Raises
    ------
    StoreError
        If there is no valid model, or this version of dpca computes other samples for it.
    """
    try:
        if not isinstance(stated, Mapping):
            raise DataError("it is not a mapping")
        name, recipe = stated.get("model"), stated.get("recipe")
        parameters = {key: value for key, value in stated.items() if key not in ("model", "recipe", _PROBE)}
        if missing := {"n_samples", "sample_shape"} - parameters.keys():
            raise DataError(f"it lacks {', '.join(sorted(missing))}")
        model = make_model(name, parameters)
        if recipe != model.recipe:
            raise DataError(f"it has recipe {str(recipe)[:40]}, but this version of dpca supports {model.recipe}")
    except DataError as error:
        raise StoreError(f"the image model of '{where}' is invalid ({error}): create the store again") from error
    return _same(model)


def is_as_stated(stated: Mapping[str, Any], model: ImageModel) -> bool:
    """Return whether a model computes the same samples as at the creation of its store; three samples are compared."""
    return bool(stated.get(_PROBE) == model.probe())


@lru_cache(maxsize=16)
def _same(model: ImageModel) -> ImageModel:
    return model
