"""What is asked of the main job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True)
class CompressionSettings:
    """What determines the output, beside the source.

    Parameters
    ----------
    model : estimator
        `CellPCA`, `BandPCA`, `PCA`, `StreamingPCA` or another one, not fitted, and left as it is. If it has a
        ``random_state``, that must be an integer.
    goal : mapping, optional
        One goal of `dpca.jobs.encode_store`, such as ``{"psnr": 36}``: the output is then a compressed store in the
        place of scores and model. The model must be a `CellPCA`; it is fitted again with more components where the goal
        takes more.
    every_sample : bool
        Whether each sample is to meet the goal, not their mean: of ``psnr``, ``mse`` and ``ssim``.
    choose_cells : bool
        Whether a compressed store takes the place of the model's cells by others where these take fewer bytes: cells
        with components of their own or shared ones, with an overlap or without, or one cell of all; see
        `dpca.jobs.cell_choice`. The model's are as long as cells can be.
    reconstruct : bool
        Whether to keep the reconstructions, of scores.
    keep_stack : bool
        Whether to keep what was ingested, as ``stack`` in the output: jobs of other settings in its place then need not
        ingest again. A Zarr array or stack store is read where it is, in any case.
    ssim : bool, optional
        Whether to measure the SSIM of every sample, where it is defined. Default: always for cells and bands; for
        components of whole samples, where it costs more than everything else, only with ``reconstruct``.
    color, resize, crop, on_error, key, axes, data_range
        As for `dpca.storage.ingest`.
    """

    model: Any
    goal: Mapping[str, float] | None = None
    every_sample: bool = False
    choose_cells: bool = False
    reconstruct: bool = False
    keep_stack: bool = False
    ssim: bool | None = None
    color: Literal["auto", "rgb", "grey"] = "auto"
    resize: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    on_error: Literal["stop", "skip"] = "stop"
    key: str | None = None
    axes: tuple[str, ...] | None = None
    data_range: tuple[float, float] | None = None

    @property
    def reading(self) -> dict[str, Any]:
        """Options of `dpca.storage.ingest` for a reader."""
        return {name: getattr(self, name) for name in ("color", "resize", "crop", "on_error", "data_range")}

    @property
    def measures_ssim(self) -> bool:
        """Whether the SSIM of every sample is measured."""
        return self.reconstruct or bool(self.model.measures_ssim) if self.ssim is None else self.ssim

    def as_dict(self) -> dict[str, Any]:
        """Return the settings in values that JSON holds, the same as those of jobs that earlier versions did."""
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "model"}
        for name, usual in (
            ("goal", None),
            ("every_sample", False),
            ("choose_cells", False),
            ("ssim", None),
            ("keep_stack", False),
        ):
            if settings[name] is usual:
                del settings[name]
        return settings | self.model.job_settings()  # type: ignore[no-any-return]
