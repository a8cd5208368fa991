"""Chapter 6 of Alakkari (2020) on data that stand for the thesis's, all of them made here: theirs beside ours.

simulations  table 6.4: five modes of ocean waves and of a vortex, ten rules in the order of time and shuffled
partitions   figure 6.12: cells, bands and whole samples of both
weather      table 6.2 and figure 6.8: stations with gaps that are filled
molecule     table 6.1 and figure 6.4: thirty components of a trajectory
elastic      equation 6.13: variances and spectra of an elastic network whose modes are known
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import positive
from dpca.cli.running import guarded, say
from dpca.pipelines.studies.kernel.section import Section
from dpca.pipelines.studies.time.sections import SECTIONS
from dpca.report.record import aligned, write_report
from dpca.storage.outputs import check_report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    return guarded(lambda: _run(_parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    output = Path(options.output)
    check_report(output)
    sections: list[Section] = []
    for name in options.only or SECTIONS:
        say(f"{name} ...")
        sections.append(SECTIONS[name](options.trials))
        # After every section: what an interrupted run had finished is on disk.
        _write(output, sections)
        say("\n\n".join(aligned(table.head, table.rows) for table in sections[-1].tables))
        say("\n".join(note for table in sections[-1].tables for note in table.notes))
    say(f"page {output / 'index.html'}")
    return 0


def _write(output: Path, sections: Sequence[Section]) -> None:
    numbers: dict[str, Any] = {key: value for section in sections for key, value in section.numbers.items()}
    write_report(
        output,
        numbers,
        {name: figure for section in sections for name, figure in section.figures.items()},
        title="Data over time",
        captions={name: caption for section in sections for name, caption in section.captions.items()},
        tables=[table for section in sections for table in section.tables],
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reproduce_time.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", default="time.report", metavar="FOLDER", help="page to write (default: %(default)s)"
    )
    parser.add_argument("--trials", type=positive, default=10, metavar="N", help="runs of each rule (default: 10)")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, metavar="SECTION", help="make only these sections (default: all)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
