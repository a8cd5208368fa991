"""The published tables of streaming PCA, computed again on the same data: theirs, ours, the difference.

Writes a Markdown report, and the same numbers with every trial as JSON beside it. Tables whose data are not in the data
folder are left out, and named.

  krasulina    Amid & Warmuth 2020, table 1: MNIST, compression loss
  mnist        Alakkari 2020, table 3.4: MNIST, ten rules
  spiked       Alakkari 2020, table 3.2: spiked covariance model
  default      incremental SVD on MNIST: random order, sorted, merged from 64 segments
  cifar        every rule on the CIFAR-10 subset, 50 components
  lfw          Alakkari 2020, table 3.7: photographs of faces, 5 and 200 components (half an hour)
  lfw-margin   every rule on the photographs, 50 components (half an hour)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import positive
from dpca.cli.running import guarded, say
from dpca.cli.work import shown_progress
from dpca.pipelines.studies.reproduction import TABLES, MissingData, ReproductionTable, markdown
from dpca.pipelines.studies.reproduction.data import Setting
from dpca.pipelines.studies.reproduction.tables import HEADING
from dpca.storage.disk import writing_errors
from dpca.storage.run import Run
from dpca.storage.transaction.outputs import OutputFile


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    return guarded(lambda: _run(_parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    output = Path(options.output)
    files = (
        OutputFile(output, "report", lambda content: content.startswith(HEADING.encode()), options.data),
        OutputFile(output.with_suffix(".json"), "report", _holds_numbers, options.data, others=output),
    )
    tables: list[ReproductionTable] = []
    skipped: dict[str, str] = {}
    # Beside the output, where there is room: the photographs take 2.5 GB once decoded.
    with writing_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=output.parent) if options.workspace is None else None
    with temporary or nullcontext(options.workspace) as folder:
        setting = Setting(Path(options.data), Path(folder), options.trials, Run(progress=shown_progress))
        for name in options.only or TABLES:
            say(f"{name} ...")
            try:
                tables.append(TABLES[name](setting))
            except MissingData as missing:
                skipped[name] = str(missing)
                say(f"{name}: left out, {missing}")
                continue
            # After every table: what an interrupted run had finished is on disk.
            _write(files, tables, skipped)
            say(markdown(tables[-1:], {}).split("\n\n", 2)[2])
    _write(files, tables, skipped)
    say(f"report  {output}\nnumbers {output.with_suffix('.json')}")
    return 0


def _write(
    files: tuple[OutputFile, OutputFile], tables: Sequence[ReproductionTable], skipped: Mapping[str, str]
) -> None:
    numbers = {"tables": {table.name: table.as_dict() for table in tables}, "skipped": skipped}
    report, beside = files
    report.write(markdown(tables, skipped).encode())
    beside.write(f"{json.dumps(numbers, indent=2, allow_nan=False)}\n".encode())


def _holds_numbers(content: bytes) -> bool:
    try:
        return set(json.loads(content)) == {"tables", "skipped"}
    except (ValueError, TypeError, RecursionError):
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reproduce_streaming.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default="../shared/data", metavar="FOLDER", help="folder of the data (default: %(default)s)"
    )
    parser.add_argument(
        "--output", default="streaming-tables.md", metavar="PATH", help="report to write (default: %(default)s)"
    )
    parser.add_argument("--trials", type=positive, default=10, metavar="N", help="runs of each rule (default: 10)")
    parser.add_argument(
        "--only", nargs="+", choices=TABLES, metavar="TABLE", help="make only these tables (default: all)"
    )
    parser.add_argument(
        "--workspace", metavar="FOLDER", help="keep stores here for the next run (default: remove them at the end)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
