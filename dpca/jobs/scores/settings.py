"""Settings of the main job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sklearn.base import clone

from dpca.choices import INFINITE
from dpca.models.denoising.denoiser import Denoiser
from dpca.storage.errors import DataError
from dpca.storage.survey import ReadOptions


@dataclass(frozen=True)
class CompressionSettings:
    """The settings that determine the output of a job for a given source.

    Parameters
    ----------
    model : estimator
        `CellPCA`, `BandPCA`, `PCA`, `StreamingPCA` or another estimator. It is not fitted and not changed. If it has a
        ``random_state``, this must be an integer. With ``gaps="iterate"`` and a goal, samples may have missing values.
    goal : mapping, optional
        One goal of `dpca.jobs.encode_store`, such as ``{"psnr": 36}``. The output is then a compressed store instead of
        scores and model. The model must be a `CellPCA`. If the goal takes more components, it is fitted again.
    every_sample : bool
        Whether each sample must meet the goal, instead of the mean, for ``psnr``, ``mse`` and ``ssim``.
    noise : Denoiser, optional
        The noise for the goal ``noise_share``, as for `dpca.jobs.encode_store`.
    choose_cells : bool
        Whether to replace the model's cells if others make a smaller compressed store: cells with their own or with
        shared components, with or without overlap, or one cell for the whole sample; see
        `dpca.jobs.compressed.cell_choice`. The model's cells are the largest that are tried, apart from whole samples.
    reconstruct : bool
        Whether to keep the reconstructions of scores.
    keep_stack : bool
        Whether to keep the ingested stack, as ``stack`` in the output. Jobs with other settings and the same output
        then need not ingest again. A Zarr array or stack store is always read in place.
    ssim : bool, optional
        Whether to measure the SSIM of every sample, if it is defined. Default: yes for cells and bands. For components
        of whole samples the SSIM takes longer than everything else, so the default is the value of ``reconstruct``.
    fewer_components : bool
        Whether the model's number of components is reduced to the number of samples that are not skipped. Otherwise
        more components than samples are an error.
    key, axes, reading
        As for `dpca.storage.ingest`.
    """

    model: Any
    goal: Mapping[str, float] | None = None
    every_sample: bool = False
    noise: Denoiser | None = None
    choose_cells: bool = False
    reconstruct: bool = False
    keep_stack: bool = False
    ssim: bool | None = None
    fewer_components: bool = False
    key: str | None = None
    axes: tuple[str, ...] | None = None
    reading: ReadOptions = ReadOptions()

    def __post_init__(self) -> None:
        if self.with_gaps:
            reading = replace(self.reading, gaps=True, infinite=self.with_infinities)
            object.__setattr__(self, "reading", reading)

    @property
    def with_gaps(self) -> bool:
        """Whether samples may have missing values, which the model fills; the compressed store keeps which they are."""
        return self.goal is not None and bool(kept_gaps(self.model))

    @property
    def with_infinities(self) -> bool:
        """Whether infinities are missing values, too, which the compressed store keeps."""
        return self.goal is not None and kept_gaps(self.model) == INFINITE

    def for_samples(self, n_samples: int) -> CompressionSettings:
        """Return the settings for a number of samples, after invalid ones are skipped."""
        if not self.fewer_components or self.model.n_components <= n_samples:
            return self
        return replace(self, model=clone(self.model).set_params(n_components=n_samples))

    def model_of_tiles(self) -> Any:
        """Return the model for tiles of large samples. Their gaps are filled before the fit, and cells are shared.

        Raises
        ------
        DataError
            If infinities are missing values, or cells overlap.
        """
        if not self.with_gaps:
            return self.model
        if self.model.overlap:
            raise DataError(f"overlap is {self.model.overlap}, but gaps='iterate' requires overlap=0: leave it out")
        if self.with_infinities:
            raise DataError(
                f"missing_value is {INFINITE!r}, but samples are large and become tiles, in which only NaN is a "
                "missing value: replace infinities by NaN"
            )
        return clone(self.model).set_params(gaps="reject", shared=True)

    @property
    def measures_ssim(self) -> bool:
        """Whether the SSIM of every sample is measured."""
        return self.reconstruct or bool(self.model.measures_ssim) if self.ssim is None else self.ssim

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values. New settings at their default are left out, as in earlier versions."""
        settings = {
            name: value
            for name, value in vars(self).items()
            if name not in ("model", "noise", "key", "axes", "reading")
        }
        *reading, data_range = self.reading.as_dict().items()
        # In this order stores have stated them since their first version.
        settings |= dict([*reading, ("key", self.key), ("axes", self.axes), data_range])
        for name, usual in (
            ("goal", None),
            ("every_sample", False),
            ("choose_cells", False),
            ("ssim", None),
            ("keep_stack", False),
            ("fewer_components", False),
        ):
            if settings[name] is usual:
                del settings[name]
        if self.noise is not None:
            settings["noise"] = self.noise.job_settings()
        return settings | self.model.job_settings()


def kept_gaps(model: Any) -> str:
    """Return which missing values a compressed store keeps: "" for none, "NaN", or `INFINITE` for infinities, too.

    Raises
    ------
    DataError
        If a number marks missing values for the model, which the store would round.
    """
    if getattr(model, "gaps", "reject") != "iterate":
        return ""
    if (marks := model.missing_value) not in (None, INFINITE):
        raise DataError(
            f"missing_value is {marks!r}, but compressed stores keep missing values as NaN: replace {marks!r} by NaN, "
            "in float32 for integers, and omit missing_value"
        )
    return marks or "NaN"
