"""Kill whole jobs and commands, or one of their workers, with SIGKILL at random moments; compare what comes out.

    python tests/benchmarks/searches/kill_and_resume.py --kills 100 --source ../shared/data/lfw-deepfunneled-03.tar
    python tests/benchmarks/searches/kill_and_resume.py --kills 10 --s3 0.05 --source
    ../shared/data/lfw-deepfunneled-00.tar
    python tests/benchmarks/searches/kill_and_resume.py --kills 100 --forked --jobs encode append job --source photos/

Strikes in every stage of the main job (ingest, fit, scores or few bytes) and in `dpca fit`, `dpca transform
--reconstruct`, `dpca encode`, `dpca append`, `dpca reconstruct`, `dpca denoise` and `dpca job run`. Each killed program
is started again with the same command; each killed worker must be replaced by the run itself. In the end the store must
equal that of an undisturbed run, byte for byte. Prints a line a run; exits with 1 at a difference.

With ``--forked`` programs are forks of one that has imported what they import, all on one cluster, and no worker is
killed. With ``--s3`` the main job alone runs, from and to a bucket of a
server on this machine, which fails that share of all requests; what it makes is compared with a store on the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from hashlib import blake2b
from io import StringIO
from pathlib import Path
from typing import Any

import psutil

from dpca.cli import main as dpca_main
from dpca.engine.clusters.cluster import open_client
from dpca.report.record import report_folder
from dpca.storage.disk import remove_tree
from dpca.storage.remote.objects import ObjectPath, Place
from tests.helpers.certificates import shown_to
from tests.helpers.forked import Programs
from tests.helpers.s3_server import content, s3_in_another_process

PROGRAM = Path(__file__).parents[3] / "pipelines" / "celeba_cpca.py"
COMMAND = (sys.executable, "-c", "import sys; from dpca.cli import main; sys.exit(main())")
#: How a program announces each stage, and the stage's name in the report.
STAGES = {"ingest": ("ingest ",), "fit": ("fit ",), "scores": ("write ",), "encode": ("write ",)}
#: How a command announces that its work begins; its only stage is called as it is.
BEGINS = ("2 workers",)
#: What is killed.
VICTIMS = ("program", "worker")
# Runs that may end before the strike, in each stage: the strike comes sooner each time.
_TRIES = 5
TWO_WORKERS = ("--workers", "2")


def started(command: list[str]) -> Any:
    """Start a program as people do."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _workers(pid: int) -> list[int]:
    try:
        # Forked from a child of the program, or started by it: in either case they have no children of their own.
        leaves = [child for child in psutil.Process(pid).children(recursive=True) if not child.children()]
        return sorted(leaf.pid for leaf in leaves if "resource_tracker" not in " ".join(leaf.cmdline()))
    except psutil.NoSuchProcess:
        return []


@dataclass(frozen=True)
class Job:
    """What is killed.

    Parameters
    ----------
    name : str
    command : callable
        Gives the command line that makes a store at a path.
    seconds : callable
        Gives how long each stage took, from the path of a store and what the run that made it printed.
    fit_description : mapping
        How each stage is announced.
    """

    name: str
    command: Callable[[Place], list[str]]
    seconds: Callable[[Place, str], dict[str, float]]
    fit_description: Mapping[str, tuple[str, ...]]


def main() -> int:
    """Kill, compare, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--kills", type=int, default=100, help="at least so many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--program", type=Path, default=PROGRAM, help="another job that takes the same options")
    parser.add_argument("--jobs", nargs="+", metavar="NAME", help="kill these only, such as append (default: all)")
    parser.add_argument("--forked", action="store_true", help="kill programs that start at once, and no worker")
    parser.add_argument("--s3", type=float, metavar="SHARE", help="in a bucket, where this share of requests fails")
    options = parser.parse_args()
    kills = differences = turn = 0
    rng = random.Random(options.seed)
    with ExitStack() as stack:
        folder: Place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".")))
        arguments, how = TWO_WORKERS if options.s3 is None else (*TWO_WORKERS, "--no-reconstruct"), {}
        start = started
        if options.forked:
            client = stack.enter_context(open_client(workers=2, memory="1.5GB"))
            stack.enter_context(shown_to(client))
            start, how = stack.enter_context(Programs()).start, {"victims": ["program"]}
            arguments = ("--scheduler", client.scheduler.address)
        jobs = [whole_job(options.source, arguments, program=options.program)]
        if options.s3 is None:
            few = whole_job(options.source, arguments, options.program, making=("--quality", "max-error=8"))
            jobs += [
                few,
                *commands(options.source, folder, arguments),
                *growing_jobs(options.source, folder, arguments),
            ]
        jobs = [job for job in jobs if options.jobs is None or job.name in options.jobs]
        calm = {job.name: undisturbed(job, folder, start) for job in jobs}
        if options.s3 is not None:
            stack.enter_context(s3_in_another_process(options.s3))
            folder = ObjectPath("s3://bucket/killed")
            source = folder / Path(options.source).name
            source.write_bytes(Path(options.source).read_bytes())
            jobs = [whole_job(str(source), arguments, program=options.program)]
            there, seconds = undisturbed(jobs[0], folder)
            differences += there != calm[jobs[0].name][0]
            print(f"in the bucket: {'same as on disk' if not differences else 'DIFFERENT from the disk'}", flush=True)
            calm[jobs[0].name] = calm[jobs[0].name][0], seconds
        while kills < options.kills:
            for job in jobs:
                struck, different = disturbed(job, folder, *calm[job.name], turn, rng, start=start, **how)
                kills, differences = kills + struck, differences + different
            turn += 1
    print(f"{kills} kills, {differences} differences")
    return 1 if differences else 0


def whole_job(
    source: str,
    arguments: Sequence[str] = TWO_WORKERS,
    program: Path = PROGRAM,
    stages: Sequence[str] = (),
    making: Sequence[str] = ("--reconstruct",),
) -> Job:
    """Return the job of a pipeline, all stages of it or some."""

    def command(output: Place) -> list[str]:
        return [sys.executable, str(program), "--source", source, *making, *arguments, "--output", str(output)]

    def seconds(output: Place, printed: str) -> dict[str, float]:
        costs = json.loads((report_folder(output) / "report.json").read_bytes())["stages"]
        return {name: cost["seconds"] for name, cost in costs.items() if name in (stages or STAGES)}

    return Job(program.stem + "".join(making), command, seconds, STAGES)


def commands(source: str, folder: Path, where: Sequence[str] = TWO_WORKERS) -> list[Job]:
    """Return the commands that fit, transform, encode, reconstruct and denoise; makes what they read in a folder."""
    stack, model, scores = (str(folder / f"{name}.zarr") for name in ("stack", "model", "scores"))
    fit = ("--cell", "10", "--components", "20")
    for made in (
        ("ingest", source, stack, "--cell", "10"),
        ("fit", stack, model, *fit),
        ("transform", model, stack, scores),
    ):
        with redirect_stdout(StringIO()):
            if dpca_main([*made, *where]):
                raise SystemExit(f"`dpca {made[0]}` failed")

    def job(name: str, *inputs: str, options: Sequence[str] = ()) -> Job:
        def seconds(output: Place, printed: str) -> dict[str, float]:
            (taken,) = re.findall(r"in ([\d.]+) s \(", printed)
            return {name: float(taken)}

        return Job(
            name,
            lambda output: [*COMMAND, name, *inputs, str(output), *options, *where],
            seconds,
            {name: BEGINS},
        )

    return [
        job("fit", stack, options=fit),
        job("transform", model, stack, options=("--reconstruct",)),
        job("encode", model, stack, options=("--max-error", "8")),
        job("reconstruct", model, scores),
        job("denoise", stack, options=("--cell", "8")),
    ]


def growing_jobs(source: str, folder: Path, where: Sequence[str] = TWO_WORKERS) -> list[Job]:
    """Return a job that appends to a compressed store, and one that a file describes; `commands` has made the rest."""
    small = folder / "small.zarr"
    with redirect_stdout(StringIO()):
        made = (str(folder / f"{name}.zarr") for name in ("model", "stack"))
        if dpca_main(["encode", *made, str(small), "--max-error", "8", *where]):
            raise SystemExit("`dpca encode` failed")

    def append(output: Place) -> list[str]:
        copy = f"shutil.copytree({str(small)!r}, sys.argv[2] + '.new', dirs_exist_ok=True)"
        begin = f"import os, shutil, sys; os.path.exists(sys.argv[2]) or os.rename({copy}, sys.argv[2])"
        program = [COMMAND[0], COMMAND[1], f"{begin}; {COMMAND[2]}"]
        return [*program, "append", str(output), source, "--drift", "accept", *where]

    def job(output: Place) -> list[str]:
        path = output.with_name(f"{output.stem}.toml")
        options = "".join(f"{name[2:]} = {value!r}\n" for name, value in zip(where[::2], where[1::2], strict=True))
        said = f'inputs = "{os.path.abspath(source)}"\noutput = "{output.name}"\n{options}'
        path.write_bytes(f"{said}target = {{max-error = 8}}\n".encode())
        return [*COMMAND, "job", "run", str(path)]

    def of_append(output: Place, printed: str) -> dict[str, float]:
        return {"append": float(re.findall(r"in ([\d.]+) s \(", printed)[0])}

    def of_job(output: Place, printed: str) -> dict[str, float]:
        return {"job": json.loads(printed.splitlines()[-2])["seconds"]}

    return [Job("append", append, of_append, {"append": BEGINS}), Job("job", job, of_job, {"job": BEGINS})]


def undisturbed(
    job: Job, folder: Place, start: Callable[[list[str]], Any] = started
) -> tuple[dict[str, str], dict[str, float]]:
    """Run a job; return its store and how long each stage took."""
    output = folder / f"{job.name}-calm.zarr"
    with start(job.command(output)) as program:
        printed = program.stdout.read()
    if program.returncode:
        raise SystemExit(f"the undisturbed run failed: exit code {program.returncode}")
    return _tree(output), job.seconds(output, printed)


def disturbed(
    job: Job,
    folder: Place,
    calm: dict[str, str],
    costs: dict[str, float],
    turn: int,
    rng: random.Random,
    victims: Sequence[str] = VICTIMS,
    start: Callable[[list[str]], Any] = started,
    workers: Callable[[int], list[int]] = _workers,
) -> tuple[int, int]:
    """Run a job once for each victim; return how often something was killed, and how many of the stores differ.

    The program is killed once in every stage, each time starting it again; of the workers, one in every stage.
    ``start`` starts a program, and ``workers`` gives the processes of its workers.
    """
    kills = differences = 0
    for victim in victims:
        output = folder / f"{job.name}-{victim}-{turn}.zarr"
        command = job.command(output)
        moments = {stage: rng.uniform(0, seconds) for stage, seconds in costs.items()}
        if victim == "program":
            for stage, delay in moments.items():
                for sooner in range(_TRIES):
                    if struck := _run_and_kill(
                        start(command), {stage: delay / 2**sooner}, job.fit_description, None, rng
                    ):
                        break
                    _remove(output)  # this time it was faster, and is done
                kills += struck
            _run_and_kill(start(command), {}, job.fit_description, None, rng)
        else:
            kills += _run_and_kill(start(command), moments, job.fit_description, workers, rng)
        found, partial = _tree(output), output.with_name(f"{output.name}.partial")
        other = sorted(name for name in {*found, *calm} if found.get(name) != calm.get(name))
        other += [partial.name] if partial.exists() else []
        differences += bool(other)
        when = ", ".join(f"{delay:.2f} s into {stage}" for stage, delay in moments.items())
        print(
            f"{job.name}: {victim} killed {when}: {', '.join(['DIFFERENT', *other]) if other else 'same'}", flush=True
        )
        _remove(output)
    return kills, differences


def _remove(output: Place) -> None:
    for made in (output, report_folder(output)):
        if made.exists():
            remove_tree(made)


def _run_and_kill(
    program: Any,
    moments: Mapping[str, float],
    fit_description: Mapping[str, tuple[str, ...]],
    workers: Callable[[int], list[int]] | None,
    rng: random.Random,
) -> int:
    """Strike a program, or one of its workers, so many seconds into each of these stages; return the strikes."""
    kills = 0
    with program:
        for line in program.stdout:
            # A job's log is JSON.
            told = json.loads(line).get("says", "") if line.startswith("{") else line
            stage = next((name for name in moments if told.startswith(fit_description[name])), None)
            if stage is None:
                continue
            time.sleep(moments[stage])
            if workers is None:
                kills += program.poll() is None
                program.kill()
            elif found := workers(program.pid):
                os.kill(rng.choice(found), signal.SIGKILL)
                kills += 1
        code = program.wait()
    if code != 0 and (workers or not moments):
        raise SystemExit(f"the run did not survive what was killed: exit code {code}")
    return kills


def _tree(folder: Place) -> dict[str, str]:
    return {name: blake2b(text).hexdigest() for name, text in content(folder).items()}


if __name__ == "__main__":
    sys.exit(main())
