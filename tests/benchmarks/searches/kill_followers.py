"""Kill a simulation that writes and a model that follows it; count torn frames, and compare what is left.

    python tests/benchmarks/searches/kill_followers.py --frames 300 --kills 10

Each is killed with SIGKILL at random moments and started again, while this process reads every frame as it arrives and
compares it with what was written. The stack and the model that are left must be those of undisturbed runs, byte for
byte, but for how far components moved since they were last looked at. Exits with 1 at a torn frame or a difference.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from dpca.storage import arrivals
from tests.helpers.forked import Programs
from tests.storage.growth.steps_to_kill import follow, step, write
from tests.storage.transaction.jobs_to_kill import tree

SCRIPT = str(Path(__file__).parents[2] / "storage" / "growth" / "steps_to_kill.py")


def torn(run: str, found: list[int]) -> None:
    """Append the number of every frame, and minus the numbers of those that are not what was written."""
    t = 0
    for frames in arrivals(run, poll=0.001, patience=60):
        for frame in frames:
            found.append(t if np.array_equal(frame, step(t)) else -t - 1)
            t += 1


def main() -> int:
    """Kill, compare, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=300, metavar="N", help="frames to write (default: 300)")
    parser.add_argument("--kills", type=int, default=10, metavar="N", help="of each of both (default: 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as name, Programs() as programs:
        calm, killed = Path(name, "calm"), Path(name, "killed")
        write(str(calm / "run.zarr"), options.frames, 0)
        follow(str(calm / "run.zarr"), str(calm / "m.zarr"))
        run, kept = str(killed / "run.zarr"), str(killed / "m.zarr")
        # As long as the kills take, and a third more.
        seconds = 0.6 * options.kills / options.frames
        commands = {"write": [run, str(options.frames), str(seconds)], "follow": [run, kept]}
        running = {each: programs.start([sys.executable, SCRIPT, each, *how]) for each, how in commands.items()}
        found: list[int] = []
        reader = threading.Thread(target=torn, args=(run, found))
        reader.start()
        kills = dict.fromkeys(commands, 0)
        for each in [*commands] * options.kills:
            time.sleep(rng.uniform(0.02, 0.4))
            kills[each] += running[each].poll() is None
            with running[each] as program:
                program.kill()
            running[each] = programs.start([sys.executable, SCRIPT, each, *commands[each]])
        errors = [program.communicate()[1] for program in running.values()]
        reader.join()
        wrong = sum(t < 0 for t in found) + abs(options.frames - len(found))
        stack, model = (tree(killed / part) == tree(calm / part) for part in ("run.zarr", "m.zarr"))
        if not model:
            one, other = tree(killed / "m.zarr"), tree(calm / "m.zarr")
            # The root states how far components moved since they were last looked at.
            model = one.keys() == other.keys() and {each for each in one if one[each] != other[each]} == {"zarr.json"}
    print(
        f"{options.frames} frames, writer killed {kills['write']} times and follower {kills['follow']}: {wrong} torn "
        f"or missing, stack {'the same' if stack else 'DIFFERENT'}, model {'the same' if model else 'DIFFERENT'}",
        *filter(None, errors),
    )
    return 0 if stack and model and not wrong and not any(errors) else 1


if __name__ == "__main__":
    sys.exit(main())
