"""``dpca watch``: components of a stack that is still being written."""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

from dpca.cli.running import say
from dpca.jobs.follow import follow
from dpca.models.streaming_pca import StreamingPCA

# Shares of the variance that a line gives one by one.
_LEADING = 3


def watch(options: argparse.Namespace) -> int:
    """Follow a stack until it is closed, and say now and then what its components explain."""
    model = StreamingPCA(options.components, keep_state=True, random_state=0)
    how: dict[str, Any] = {"poll": min(1.0, options.every), "save_every": options.every, "patience": options.patience}
    last, told = time.monotonic(), 0
    for found in follow(options.path, model, checkpoint=options.model, **how):
        if time.monotonic() - last >= options.every:
            told = _tell(found)
            last = time.monotonic()
    final = StreamingPCA.load(options.model)
    if final.n_samples_seen_ != told:
        _tell(final)
    say(f"'{options.path}' is closed: '{options.model}' has the components of all its samples")
    return 0


def _tell(model: StreamingPCA) -> int:
    """Say what a model explains; return the number of its samples."""
    n, shares = model.n_samples_seen_, model.explained_variance_ratio_
    leading = ", ".join(f"{share:.1%}" for share in shares[:_LEADING])
    proved = math.floor(model.captured_bound_ * 10_000) / 10_000  # rounded down: it is a bound
    say(
        f"{n:,} samples: {len(shares)} components explain {shares.sum():.2%} of the variance ({leading}, ...), at "
        f"least {proved:.4f} of what the best would"
    )
    return n
