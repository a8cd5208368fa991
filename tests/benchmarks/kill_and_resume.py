"""Kill the main job, or one of its workers, with SIGKILL at random moments of every stage; compare what comes out.

    python tests/benchmarks/kill_and_resume.py --kills 10 --source ../shared/data/lfw-deepfunneled-03.tar

Each killed program is started again with the same command; each killed worker must be replaced by the run itself. In
end the store must equal that of an undisturbed run, byte for byte. Prints a line a kill; exits with 1 at any difference.
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
    parser.add_argument("--kills", type=int, default=10, help="of the program, and as many of a worker, in each stage")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        differences = kill_everywhere(options.source, Path(folder), options.kills, options.seed)
    print(f"{differences} differences")
    return 1 if differences else 0


def kill_everywhere(source: str, folder: Path, kills: int, seed: int, arguments: tuple[str, ...] = ()) -> int:
    """Return how many of the disturbed runs made another store than the undisturbed one."""
    rng = random.Random(seed)
    common = [sys.executable, str(PROGRAM), "--source", source, "--reconstruct", "--workers", "2", *arguments]
    subprocess.run([*common, "--output", str(folder / "calm.zarr")], check=True, stdout=subprocess.DEVNULL)
    calm = _tree(folder / "calm.zarr")
    lasted = json.loads((folder / "calm.report" / "report.json").read_text())["stages"]
    differences = 0
    for victim in ("program", "worker"):
        for stage, announcement in STAGES.items():
            for turn in range(kills):
                output = folder / f"{victim}-{stage}-{turn}.zarr"
                command = [*common, "--output", str(output)]
                delay = rng.uniform(0, lasted[stage]["seconds"])
                struck = _run_and_kill(command, announcement, delay, victim, rng)
                if victim == "program":
                    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                same = _tree(output) == calm and not output.with_name(f"{output.name}.partial").exists()
                differences += not same
                print(f"{victim} {struck} {delay:.2f} s into {stage}: {'same' if same else 'DIFFERENT'}", flush=True)
                shutil.rmtree(output)
                shutil.rmtree(output.with_suffix(".report"))
    return differences


def _run_and_kill(command: list[str], announcement: str, delay: float, victim: str, rng: random.Random) -> str:
    """Start the program, strike ``delay`` seconds into the announced stage, and wait for its end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if line.startswith(announcement):
                break
        time.sleep(delay)
        struck = "killed"
        if victim == "program":
            program.kill()
        else:
            workers = _workers(program.pid)
            if workers:
                os.kill(rng.choice(workers), signal.SIGKILL)
            else:
                struck = "had ended"
        program.stdout.read()
        code = program.wait()
    if victim == "worker" and code != 0:
        raise SystemExit(f"the run did not survive the death of a worker: exit code {code}")
    return struck


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
