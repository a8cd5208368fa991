"""The content of the page: samples, reconstructions, numbers and orders. It does not depend on widgets or pages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dpca.explore.decoders import Decoder, Pictured, decoder_of_model
from dpca.explore.originals import LargeSample, Originals, SampleNames
from dpca.explore.pictures import PERCENTILES, Contrast, SourceFacts
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels
from dpca.plots.overviews import thinned
from dpca.plots.panels import align_signs, by_sign, differences, intensity, panel, range_of, spread_over
from dpca.storage.arrays.layout import axes_for, count_spatial
from dpca.storage.errors import DataError

#: Most rows or columns of a picture on the page, at 100 %, of a thumbnail and of an eigenimage.
LONGEST, FULL, THUMBNAIL, EIGENIMAGE = 1024, 4096, 128, 160
# Number of samples that are measured if the store states no quality or no data range; most bytes of those for a range.
_MEASURED, _RANGE_BYTES = 64, 2**26
#: Orders of samples, name to label; `Explorer.orders` returns the available ones.
ORDERS = {
    "stack": "as in the stack",
    "ssim": "SSIM, lowest first",
    "psnr": "PSNR, lowest first",
    "mse": "MSE (reconstruction error), highest first",
    "distance": "outliers: farthest from the mean first",
    "measured": f"MSE of {_MEASURED} samples spread over the stack, highest first",
}


@dataclass(frozen=True)
class SampleView:
    """The view of a sample: panels (H, W), (H, W, 3) or (L,) of values in 0..1, NaN where they are missing."""

    index: int
    name: str
    k: int | None
    original: Array | None = None
    reconstruction: Array | None = None
    difference: Array | None = None
    gain: int = 1
    bounds: tuple[float, float] = (0.0, 1.0)
    """Values of black and white."""
    stored: dict[str, float] = field(default_factory=dict)
    """Quality with all components, from the store."""
    size: str = ""


@dataclass(frozen=True)
class ComponentView:
    """The view of a model: mean and eigenimages as panels, and the variance that the components explain."""

    mean: Array | None
    images: list[Array]
    """Eigenimages from the one with index ``first`` on."""
    first: int
    shares: list[float]
    """Share of the variance of each eigenimage, from the first one of all on."""
    explained: Array
    """Cumulative share (k,), the mean of all cells or bands; empty without eigenvalues."""
    description: str


class Explorer:
    """Views of a stack, a model, scores or a compressed store.

    Parameters
    ----------
    facts : SourceFacts or None
        None for a model alone.
    originals : Originals or None
        None without the original samples.
    names : SampleNames
    """

    def __init__(self, facts: SourceFacts | None, originals: Originals | None, names: SampleNames) -> None:
        self.facts, self.originals, self.names = facts, originals, names
        self.model: Any = None
        self._decoder: Decoder | None = None
        #: Counts the models so far. A page that shows an earlier version is out of date.
        self.version = 0
        #: A message about a problem with the model; "" if there is none.
        self.news = ""
        #: The progress of a fit, and whether a fit runs.
        self.progress, self.fitting = "", False
        self.stop_fit: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._orders = lru_cache(8)(self._ordered)

    # -- the model

    def use(self, model: Any, decoder: Decoder | None = None) -> None:
        """Show a fitted model from now on. ``decoder`` makes its reconstructions; the default encodes the samples.

        Raises
        ------
        DataError
            If the model was fitted to other samples, or has neither components nor reconstructions.
        """
        from dpca.models.base.store import basis_of
        from dpca.models.eof.eof import EOF

        modes = isinstance(model, EOF)
        if not modes and not (hasattr(type(model), "basis_") and model.basis_.decodes):
            raise DataError(
                f"a model of kind {model.store_kind} has neither components of samples nor reconstructions to show: "
                f"load it in Python and call its methods"
            )
        shape = tuple(model.sample_shape_)
        if self.facts is not None and shape != self.facts.sample_shape:
            raise DataError(
                f"'{self.facts.path}' has samples of {self.facts.sample_shape} but the model was fitted to "
                f"{shape}: give the model of this stack"
            )
        if decoder is None and self.originals is not None and not modes:
            decoder = decoder_of_model(basis_of(model), self.originals, self._pixels())
        self.use_store(decoder, model)

    def use_store(self, decoder: Decoder | None, model: Any = None) -> None:
        """Show the reconstructions of ``decoder`` from now on, without a model for those of a compressed store."""
        with self._lock:
            self.model, self._decoder = model, decoder
            self.version += 1

    @property
    def n_components(self) -> int:
        """Number of components for reconstructions; 0 without a model."""
        decoder = self._decoder
        return 0 if decoder is None else decoder.n_components

    def components(self, count: int, plane: int | None = None, first: int = 0) -> ComponentView | None:
        """Return the view of the components from ``first`` to ``count``; None if there are none."""
        model, decoder = self.model, self._decoder
        if model is not None:
            pictured: Pictured | None = Pictured.of_model(model, count)
        else:
            pictured = None if decoder is None else decoder.pictured(count)
        if pictured is None:
            return None
        facts, mean = self.facts, pictured.mean
        vectors = () if pictured.vectors is None else pictured.vectors
        shape = next((tuple(v.shape) for v in (*vectors[:1], mean) if v is not None), ())
        if facts is None or facts.sample_shape != shape:
            labels = getattr(model, "_labels", None)
            facts = SourceFacts("", 0, shape, np.dtype(np.float32), axes_for(shape), None)
            facts = facts.with_coordinates(labels and labels.kept(shape))
        images = [_eigenimage(vector, facts, pictured.cell_shape, plane) for vector in vectors[first:]]
        if mean is not None:
            # In a range of its own.
            (values,), bounds, _ = replace(facts, dtype=np.dtype(np.float64), data_range=None).scaled(
                [facts.picture(mean, plane, EIGENIMAGE)], PERCENTILES
            )
            mean = intensity(values, bounds)
        return ComponentView(
            mean, images, first, pictured.share.tolist(), np.cumsum(pictured.share), pictured.description
        )

    # -- a sample

    @property
    def middle(self) -> int:
        """The initial slice of a volume."""
        return 0 if self.facts is None else self.facts.n_planes // 2

    def view(
        self,
        index: int,
        k: int,
        plane: int | None = 0,
        contrast: Contrast = PERCENTILES,
        longest: int | None = None,
    ) -> SampleView:
        """Return the view of a sample with its first ``k`` components.

        Parameters
        ----------
        index : int
        k : int
            At most all components are used.
        plane : int or None
            Slice of a volume; None for the maximum of all slices.
        contrast : Contrast
        longest : int, optional
            Most rows or columns of a picture; the default is `LONGEST`.

        Raises
        ------
        StoreError, DataError
            If something cannot be read.
        """
        facts = self._facts()
        name = self.names[index]
        x, y, level = self._pair(index, k)
        there = [v for v in (x, y) if v is not None]
        shown = [facts.picture(v, plane, longest or LONGEST, contrast.channel) for v in there]
        shown, within, bounds = facts.scaled(shown, contrast)
        rest = iter([intensity(v, within) for v in shown])
        panels = [None if v is None else next(rest) for v in (x, y)]
        error, gain = None, 1
        if len(shown) == 2:
            (error,), gain = differences([(shown[0], shown[1])], within)
        decoder = self._decoder
        stored = {} if decoder is None else {n: float(v[index]) for n, v in decoder.quality.items()}
        size = "" if decoder is None or level is None else decoder.describe_size(level)
        return SampleView(index, name, level, panels[0], panels[1], error, gain, bounds, stored, size)

    def measure(self, index: int, k: int) -> dict[str, float]:
        """Return the quality of a sample with its first ``k`` components: ssim, psnr in dB, mse of the data range.

        Empty without an original or a reconstruction, and for a sample that is not read whole. The data range is the
        stated one, or else that of `found_range`.

        Raises
        ------
        StoreError, DataError
            If something cannot be read.
        """
        facts, (x, y, _) = self._facts(), self._pair(index, k)
        if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
            return {}
        # Imported here, because it takes half a second and the first picture does not need it.
        from dpca.kernels.quality import has_ssim, mse_per_sample, psnr_from_mse, ssim_per_sample

        low, high = facts.data_range or self.found_range[0]
        width, n_spatial = high - low, count_spatial(facts.axes)
        mse = float(mse_per_sample(x[None], y[None], data_range=width)[0])
        numbers = {"mse": mse, "psnr": float(psnr_from_mse(np.asarray(mse)))}
        if has_ssim(facts.sample_shape, n_spatial):
            numbers["ssim"] = float(ssim_per_sample(x[None], y[None], data_range=width, n_spatial=n_spatial)[0])
        return numbers

    @cached_property
    def found_range(self) -> tuple[tuple[float, float], int]:
        """The least and the greatest value of samples spread over the stack, and their number.

        It is the data range of samples without a stated one.
        """
        facts, ends = self._facts(), []
        assert self.originals is not None
        for index in spread_over(facts.n_samples, max(1, min(_MEASURED, _RANGE_BYTES // facts.sample_bytes))):
            with suppress(DataError):  # a broken sample, which is reported when it is chosen
                sample = self.originals.whole(index)
                finite = sample[np.isfinite(sample)]
                ends += [finite[[finite.argmin(), finite.argmax()]]] if finite.size else []
        return range_of(ends, None), len(ends)

    def thumbnail(self, index: int, contrast: Contrast = PERCENTILES) -> Array:
        """Return a small panel of a sample, or of its reconstruction if there is no original."""
        facts, decoder = self._facts(), self._decoder
        if self.originals is not None:
            sample = self.originals.read(index)
        elif decoder is not None:
            sample = decoder.decode(index, decoder.n_components)
        else:
            raise DataError("there are neither samples nor a model to show: give a stack")
        return facts.thumbnail(sample, facts.n_planes // 2, THUMBNAIL, contrast)

    def _pair(self, index: int, k: int) -> tuple[Array | LargeSample | None, Array | LargeSample | None, int | None]:
        """Return a sample, its reconstruction, and the number of components of this one."""
        decoder = self._decoder
        x = None if self.originals is None else self.originals.read(index)
        if decoder is None:
            return x, None, None
        level = max(1, min(k, decoder.n_components))
        return x, decoder.decode(index, level), level

    # -- orders

    @property
    def orders(self) -> dict[str, str]:
        """The available orders of samples, name to label."""
        decoder, names = self._decoder, ["stack"]
        if decoder is not None:
            names += [name for name in ("ssim", "psnr", "mse") if name in decoder.quality]
            names += ["distance"] if decoder.has_distances else []
            small = self.originals is not None and not self.originals.are_large
            names += ["measured"] if small and not decoder.quality else []
        return {name: ORDERS[name] for name in names}

    def order(self, name: str) -> Sequence[int] | Array:
        """Return the indices of samples in an order.

        Raises
        ------
        DataError, StoreError
            If something cannot be read.
        """
        n = 0 if self.facts is None else self.facts.n_samples
        return range(n) if name == "stack" or self._decoder is None else self._orders(self._decoder, name)

    def _ordered(self, decoder: Decoder, name: str) -> Array:
        if name == "measured":
            some = spread_over(self._facts().n_samples, _MEASURED)
            lost = [self._error(decoder, index) for index in some]
            return np.asarray(some)[np.argsort(np.negative(lost), kind="stable")]
        values = decoder.distances() if name == "distance" else decoder.quality[name]
        values = np.nan_to_num(values, nan=np.inf if name in ("ssim", "psnr") else -np.inf)
        return np.argsort(values if name in ("ssim", "psnr") else -values, kind="stable")

    # -- numbers

    def _facts(self) -> SourceFacts:
        if self.facts is None:
            raise DataError("a model alone has no samples to show: give the stack, too (--stack)")
        return self.facts

    def _pixels(self) -> Pixels | None:
        facts = self.facts
        return None if facts is None or facts.data_range is None else Pixels(facts.dtype, facts.data_range)

    def _error(self, decoder: Decoder, index: int) -> float:
        assert self.originals is not None
        y = decoder.decode(index, decoder.n_components)
        assert isinstance(y, np.ndarray)  # large samples are not measured
        return float(np.mean((self.originals.whole(index).astype(np.float64) - y) ** 2))


def _eigenimage(
    vector: Array | LargeSample, facts: SourceFacts, cells: tuple[int, ...] | None, plane: int | None
) -> Array:
    number = facts.n_planes // 2 if plane is None else plane
    if isinstance(vector, LargeSample):  # of which cells are hardly visible
        return by_sign(facts.tinted(facts.picture(vector, number, EIGENIMAGE)))
    every = bool(facts.channel_colors)
    values = facts.tinted(panel(facts.plane(vector, number), facts.plane_axes, every_channel=every))
    return by_sign(thinned(facts.upright(align_signs(values, cells)), EIGENIMAGE))
