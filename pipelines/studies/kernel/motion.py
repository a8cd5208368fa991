"""Noise reduction of human motion: figure 11 of Günter, Schraudolph & Vishwanathan (2007), section 5.1.5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from dpca import PCA, KernelPCA
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.kernel.courses import (
    KernelMatrix,
    centered,
    excess_of,
    gaussian,
    picture,
    run,
    table,
    variants_of,
)
from dpca.pipelines.studies.runner import Section
from dpca.report.page import DataTable

COMPONENTS, PASSES, FRAMES = 25, 50, 343
#: gamma is 1 / (2 sigma^2).
_SQUARED_SIGMA = 1.5
_VARIANCE = 2.0
_THEIRS = (
    "Theirs (figure 11, another walk of the same data base): et* beats et, which beats t; SMD improves et more than "
    "et*, but not to its level. KHA/et* removes 87.5 % of the noise's variance."
)


def motion_section(setting: Setting, n_passes: int = PASSES) -> Section:
    """Figure 11: motion capture with noise, directions of 30 parts of a body in 343 frames."""
    clean = directions(
        setting.file("mocap/01.asf", "a skeleton of motion capture"),
        setting.file("mocap/01_01.amc", "motion capture of it"),
    )[:FRAMES]
    noisy = with_noise(clean, np.random.default_rng(0))
    flat = noisy.reshape(FRAMES, -1)
    problem = KernelMatrix(centered(gaussian(flat, np.sqrt(_SQUARED_SIGMA))), COMPONENTS)
    courses = [run(problem, variant, setting.trials, n_passes) for variant in variants_of("motion")]
    kernel = KernelPCA(COMPONENTS, method="exact", gamma=1 / (2 * _SQUARED_SIGMA), pre_image="fixed-point")
    models: dict[str, Any] = {"kernel PCA": kernel, "linear PCA": PCA(COMPONENTS)}
    noise = np.mean((noisy - clean) ** 2)
    left = {}
    for name, model in models.items():
        found = np.asarray(model.fit(flat).inverse_transform(model.transform(flat)))
        left[name] = float(np.mean((found.reshape(clean.shape) - clean) ** 2) / noise)
    lines = [(name, f"{1 - share:.1%}") for name, share in left.items()]
    return Section(
        [
            table("Motion capture: excess reconstruction error", courses, (1, 10, 50), [_THEIRS]),
            DataTable("Noise removed from the motion, 25 components", ("", "of its variance"), lines),
        ],
        {"motion": picture(courses, "Motion capture", _THEIRS)},
        {"motion": {"noise_left": left, "excess": excess_of(courses)}},
    )


def with_noise(directions: Array, rng: np.random.Generator) -> Array:
    """Return unit vectors (..., 3) after noise with a variance of 2 degrees is added to both of their angles."""
    polar = np.arccos(np.clip(directions[..., 2], -1, 1))
    azimuth = np.arctan2(directions[..., 1], directions[..., 0])
    shift = np.deg2rad(rng.normal(0, np.sqrt(_VARIANCE), (2, *polar.shape)))
    polar, azimuth = polar + shift[0], azimuth + shift[1]
    return np.stack([np.sin(polar) * np.cos(azimuth), np.sin(polar) * np.sin(azimuth), np.cos(polar)], axis=-1)


def directions(skeleton: Path, motion: Path) -> Array:
    """Return the directions (frame, part, 3) of the parts of a body, unit vectors, from ASF and AMC files."""
    parts, parents = _skeleton(skeleton.read_text())
    frames = _frames(motion.read_text())
    names = list(parts)
    found = np.empty((len(frames), len(names), 3))
    turns = {"root": Rotation.from_euler("xyz", [frame["root"][3:] for frame in frames], degrees=True)}
    for name in names:  # parents come before their children
        direction, axis, free = parts[name]
        angles = np.zeros((len(frames), 3))
        if free:
            angles[:, free] = [frame[name] for frame in frames]
        # Angles of a part are about its own axes.
        own = Rotation.from_euler("xyz", axis, degrees=True)
        turns[name] = turns[parents[name]] * own * Rotation.from_euler("xyz", angles, degrees=True) * own.inv()
        found[:, names.index(name)] = turns[name].apply(direction)
    found /= np.linalg.norm(found, axis=-1, keepdims=True)
    return found


def _skeleton(text: str) -> tuple[dict[str, tuple[list[float], list[float], list[int]]], dict[str, str]]:
    """Return direction, axis and free angles of each part, and its parent."""
    _, rest = text.split(":bonedata")
    bones, hierarchy = rest.split(":hierarchy")
    parents = {child: line.split()[0] for line in hierarchy.splitlines() for child in line.split()[1:]}
    known = {}
    for block in bones.split("begin")[1:]:
        values = {words[0]: words[1:] for line in block.splitlines() if (words := line.split())}
        free = [("rx", "ry", "rz").index(name) for name in values.get("dof", [])]
        known[values["name"][0]] = ([*map(float, values["direction"])], [*map(float, values["axis"][:3])], free)
    return {name: known[name] for name in parents}, parents


def _frames(text: str) -> list[dict[str, list[float]]]:
    """Return the numbers of each part in each frame."""
    frames: list[dict[str, list[float]]] = []
    for line in text.splitlines():
        words = line.split()
        if words and words[0].isdigit():
            frames.append({})
        elif words and frames:
            frames[-1][words[0]] = [*map(float, words[1:])]
    return frames
