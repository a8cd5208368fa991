"""Print every ratio that speed is judged by, a line of JSON each; compare them with those of an earlier run.

    python tests/benchmarks/run.py > now.jsonl                              (complete LFW: about half an hour)
    python tests/benchmarks/run.py --source lfw-deepfunneled-00.tar --only fit scores
    python tests/benchmarks/run.py --compare before.jsonl

Times are processor seconds, but for two workers against one and for reading ahead. All sides of a ratio take turns in
one run, and medians count; but for the stages that start workers, all threads stay on one processor. With --compare,
sentences on standard error say what changed, and the exit code is 1 if a ratio became worse by more than the margin of
its unit.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from tests.benchmarks.quality import compressed_bytes, denoising, noise_bytes, sequence_bytes, streaming_quality
from tests.benchmarks.sides import Stage, compared, inputs_of, one_processor, options_of, print_line, read_lines
from tests.benchmarks.speed import (
    analysis_speed,
    checked_reading,
    cluster_speed,
    compressed_speed,
    field_speed,
    fit_speed,
    gap_speed,
    in_situ,
    ingest_speed,
    integer_products,
    kernel_speed,
    large_memory,
    large_samples,
    learning_speed,
    partition_speed,
    scores_speed,
    spread_speed,
    streaming_speed,
    synthetic_speed,
    two_fields,
)

STAGES: dict[str, Stage] = {
    "ingest": ingest_speed.lines,
    "products": integer_products.lines,
    "fit": fit_speed.lines,
    "scores": scores_speed.lines,
    "job": scores_speed.job_lines,
    "peers": streaming_speed.peer_lines,
    "rule": streaming_speed.rule_lines,
    "partial-fit": streaming_speed.partial_fit_lines,
    "in-situ": in_situ.lines,
    "reading": streaming_speed.reading_lines,
    "quality": streaming_quality.lines,
    "fields": field_speed.lines,
    "two-fields": two_fields.lines,
    "gaps": gap_speed.lines,
    "bands": partition_speed.band_lines,
    "overlap": partition_speed.overlap_lines,
    "in-memory": partition_speed.in_memory_lines,
    "large-samples": large_samples.lines,
    "large-memory": large_memory.lines,
    "bytes": compressed_bytes.lines,
    "sequences": sequence_bytes.lines,
    "denoising": denoising.lines,
    "noise": noise_bytes.lines,
    "analysis": analysis_speed.lines,
    "kernel": kernel_speed.lines,
    "learning": learning_speed.lines,
    "codec": compressed_speed.lines,
    "manifest": checked_reading.lines,
    "synthetic": synthetic_speed.lines,
    "workers": cluster_speed.worker_lines,
    "memory": cluster_speed.memory_lines,
    "spread": spread_speed.lines,
}
# Stages that start workers.
ON_CLUSTERS = ("workers", "memory", "spread")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and compare; return the exit code."""
    parser = options_of(__doc__)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=STAGES, default=list(STAGES), help=", ".join(STAGES)
    )
    parser.add_argument("--compare", type=Path, metavar="FILE", help="what an earlier run printed")
    options = parser.parse_args(argv)
    before = read_lines(options.compare) if options.compare else {}
    failed = False
    with tempfile.TemporaryDirectory(dir=".") as folder:
        inputs = inputs_of(options, folder)
        for stage in options.only:
            with nullcontext() if stage in ON_CLUSTERS else one_processor():
                for line in STAGES[stage](inputs):
                    print_line(line)
                    if line.name in before:
                        said, worse = compared(before[line.name], line)
                        failed |= worse
                        print(said, file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
