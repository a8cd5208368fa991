"""Kill the main job, or one of its workers, with SIGKILL at random moments of every stage; compare what comes out.

    python tests/benchmarks/kill_and_resume.py --rounds 10 --source ../shared/data/lfw-deepfunneled-03.tar

Each killed program is started again with the same command; each killed worker must be replaced by the run itself. In
end the store must equal that of an undisturbed run, byte for byte. Prints a line a run; exits with 1 at a difference.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from hashlib import blake2b
from pathlib import Path

import psutil

PROGRAM = Path(__file__).parents[2] / "pipelines" / "celeba_cpca.py"
#: How the program announces each stage, and the stage's name in the report.
STAGES = {"ingest": "ingest ", "fit": "fit ", "scores": "write "}


def main() -> int:
    """Kill, compare, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--rounds", type=int, default=10, help="kills of the program, and of a worker, in each stage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--program", type=Path, default=PROGRAM, help="another job that takes the same options")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        differences = kill_everywhere(
            options.source, Path(folder), options.rounds, options.seed, program=options.program
        )
    print(f"{differences} differences")
    return 1 if differences else 0


def kill_everywhere(
    source: str,
    folder: Path,
    rounds: int,
    seed: int,
    arguments: tuple[str, ...] = (),
    program: Path = PROGRAM,
    stages: tuple[str, ...] = tuple(STAGES),
) -> int:
    """Return how many of the disturbed runs made another store than the undisturbed one.

    A round kills the program once in every stage, each time starting it again, and in a second run one worker in every
    stage.
    """
    rng = random.Random(seed)
    common = [sys.executable, str(program), "--source", source, "--reconstruct", "--workers", "2", *arguments]
    subprocess.run([*common, "--output", str(folder / "calm.zarr")], check=True, stdout=subprocess.DEVNULL)
    calm = _tree(folder / "calm.zarr")
    costs = json.loads((folder / "calm.report" / "report.json").read_text())["stages"]
    differences = 0
    for turn in range(rounds):
        for victim in ("program", "worker"):
            output = folder / f"{victim}-{turn}.zarr"
            command = [*common, "--output", str(output)]
            moments = {stage: rng.uniform(0, costs[stage]["seconds"]) for stage in stages}
            if victim == "program":
                for stage, delay in moments.items():
                    _run_and_kill(command, {stage: delay}, victim, rng)
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            else:
                _run_and_kill(command, moments, victim, rng)
            same = _tree(output) == calm and not output.with_name(f"{output.name}.partial").exists()
            differences += not same
            when = ", ".join(f"{delay:.2f} s into {stage}" for stage, delay in moments.items())
            print(f"{victim} killed {when}: {'same' if same else 'DIFFERENT'}", flush=True)
            shutil.rmtree(output)
            shutil.rmtree(output.with_suffix(".report"))
    return differences


def _run_and_kill(command: list[str], moments: dict[str, float], victim: str, rng: random.Random) -> None:
    """Start the program, strike so many seconds into each of these stages, and wait for its end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            stage = next((name for name in moments if line.startswith(STAGES[name])), None)
            if stage is None:
                continue
            time.sleep(moments[stage])
            if victim == "program":
                program.kill()
            elif workers := _workers(program.pid):
                os.kill(rng.choice(workers), signal.SIGKILL)
        code = program.wait()
    if victim == "worker" and code != 0:
        raise SystemExit(f"the run did not survive the death of a worker: exit code {code}")


def _workers(pid: int) -> list[int]:
    try:
        children = psutil.Process(pid).children(recursive=True)
        return sorted(child.pid for child in children if "spawn_main" in " ".join(child.cmdline()))
    except psutil.NoSuchProcess:
        return []


def _tree(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): blake2b(p.read_bytes()).hexdigest() for p in files}


if __name__ == "__main__":
    sys.exit(main())
