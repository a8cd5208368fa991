"""The published tables of streaming PCA, computed again on the same data: theirs, ours, the difference.

Writes a Markdown report, and the same numbers with every trial as JSON beside it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.running import run_program, say
from dpca.pipelines.studies.programs import section_parser, setting_of
from dpca.pipelines.studies.reproduction import TABLES
from dpca.pipelines.studies.reproduction.tables import MarkdownReport, markdown
from dpca.pipelines.studies.runner import make_each
from dpca.storage.disk import writing_errors


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    parser = section_parser("reproduce_streaming.py", __doc__, TABLES, output="streaming-tables.md", trials=10)
    parser.add_argument(
        "--workspace", metavar="FOLDER", help="keep stores here for the next run (default: remove them at the end)"
    )
    return run_program(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    report = MarkdownReport(Path(options.output), options.data)
    # Temporary stores are beside the output, because there is room: the decoded photographs take 2.5 GB.
    with writing_errors(report.output):
        report.output.parent.mkdir(parents=True, exist_ok=True)
        temporary = None if options.workspace else tempfile.TemporaryDirectory(dir=report.output.parent)
    with temporary or nullcontext(options.workspace) as folder:
        tables = {name: partial(make, setting_of(options, folder)) for name, make in TABLES.items()}
        make_each(tables, options.only, lambda table: say(markdown([table], {}).split("\n\n", 2)[2]), report.write)
    say(f"report  {report.output}\nnumbers {report.numbers}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
