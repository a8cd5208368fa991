"""A running simulation that writes its frames: reaction and diffusion in three dimensions (Gray & Scott 1983).

    python pipelines/gray_scott.py run.zarr --side 64 --frames 300      in one terminal, and in another one
    dpca watch run.zarr modes.zarr --components 9

Either may be killed and started again: the store is bit-identical to that of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

import numpy as np

from dpca.cli.arguments import natural, positive
from dpca.cli.running import run_program, say
from dpca.kernels.algebra.types import Array
from dpca.storage import Appender

# Diffusion of both substances, feed and kill rate (Pearson 1993, figure 3): spots that divide.
_DIFFUSION, _FEED, _KILL = (0.16, 0.08), 0.03, 0.062


def simulate(side: int, steps: int, seed: int = 0) -> Iterator[Array]:
    """Yield the concentration of the second substance (side, side, side), float32, after each number of time steps.

    Explicit Euler steps of length 1 on a periodic grid of spacing 1, starting from cubes at random positions. The next
    step overwrites the yielded array.
    """
    rng = np.random.default_rng(seed)
    u, v = np.ones((side,) * 3, np.float32), np.zeros((side,) * 3, np.float32)
    size = max(6, side // 8)
    for corner in rng.integers(0, side - size, (12, 3)):
        box = tuple(slice(a, a + size) for a in corner)
        u[box], v[box] = 0.5, 0.25
    v += rng.uniform(0, 0.01, v.shape).astype(np.float32)
    while True:
        for _ in range(steps):
            reaction = u * v * v
            du = _DIFFUSION[0] * _laplacian(u) - reaction + _FEED * (1 - u)
            dv = _DIFFUSION[1] * _laplacian(v) + reaction - (_FEED + _KILL) * v
            u += du
            v += dv
        yield v


def _laplacian(x: Array) -> Array:
    out = -6 * x
    for axis in range(3):
        out += np.roll(x, 1, axis)
        out += np.roll(x, -1, axis)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = argparse.ArgumentParser(
        prog="gray_scott.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", metavar="PATH", help="store to write; an interrupted run resumes there")
    for name, default, what in (
        ("side", 64, "points along each axis"),
        ("frames", 300, "frames to write"),
        ("steps", 20, "time steps between two frames"),
    ):
        parser.add_argument(
            f"--{name}", type=positive, default=default, metavar="N", help=f"{what} (default: {default})"
        )
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="seed of the start (default: 0)")
    return run_program(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    shape, parameters = (options.side,) * 3, {"steps": options.steps, "seed": options.seed}
    with Appender(options.target, shape, "f4", axes=("z", "y", "x"), parameters=parameters) as frames:
        # There are no checkpoints: frames that are already written are computed again, and not written.
        for t, frame in zip(range(options.frames), simulate(options.side, options.steps, options.seed), strict=False):
            if t >= frames.n_samples:
                frames.append(frame)
    say(f"'{options.target}' has {options.frames:,} frames")
    return 0


if __name__ == "__main__":
    sys.exit(main())
