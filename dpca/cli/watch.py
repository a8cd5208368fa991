"""``dpca watch``: fits components to a stack that is still being written."""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

from dpca.cli.running import conclude, say
from dpca.jobs.models.follow import follow
from dpca.models.streaming.streaming_pca import StreamingPCA

# Number of components with their own share of the variance in each line.
_LEADING = 3


def watch(options: argparse.Namespace) -> int:
    """Follow a stack until it is closed, and print the variance of its components at intervals."""
    model = StreamingPCA(options.components, keep_state=True, random_state=0)
    how: dict[str, Any] = {"poll": min(1.0, options.every), "save_every": options.every, "patience": options.patience}
    last, reported = time.monotonic(), 0
    for found in follow(options.path, model, checkpoint=options.model, **how):
        if time.monotonic() - last >= options.every:
            reported = _print_model(found)
            last = time.monotonic()
    final = StreamingPCA.load(options.model)
    if final.n_samples_seen_ != reported:
        _print_model(final)
    seen = f"'{options.path}' is closed, and '{options.model}' has seen all {final.n_samples_seen_:,} samples"
    conclude(seen, "transform", options.model, options.path, "SCORES.zarr")
    return 0


def _print_model(model: StreamingPCA) -> int:
    """Print the explained variance of a model; return the number of its samples."""
    n, shares = model.n_samples_seen_, model.explained_variance_ratio_
    leading = ", ".join(f"{share:.1%}" for share in shares[:_LEADING])
    proved = math.floor(model.captured_bound_ * 10_000) / 10_000  # rounded down, because it is a lower bound
    say(
        f"{n:,} samples: {len(shares)} components explain {shares.sum():.2%} of the variance ({leading}, ...), at "
        f"least {proved:.4f} of the optimum"
    )
    return n
