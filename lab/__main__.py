"""`python -m lab [--seeds A:B]` runs seeds of the simulation; `python -m lab replay SEED` prints the trace of one."""

import argparse
import os
import sys

from lab.world import install

install()  # before the programs that run in the lab are imported

from lab import runs, script_runs  # noqa: E402


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    parser.add_argument("--seeds", type=runs.seed_range, default=range(1000), metavar="A:B", help="default: 0:1000")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument(
        "--crash-points", action="store_true", help="also try many power cuts at the calls of the hub in each seed"
    )
    commands = parser.add_subparsers(dest="command")
    replay = commands.add_parser("replay", help="run one seed and print its trace")
    replay.add_argument("seed", type=int)
    for family in script_runs.FAMILIES:
        command = commands.add_parser(family, help=f"run the scripts of lab/{family}.py")
        command.add_argument("--replay", type=int, metavar="SEED", help="run one seed and print its trace")
    bugs = commands.add_parser("planted", help="plant bugs, and print the first seed that finds each")
    bugs.add_argument("--known", action="store_true", help="try only the seeds that are known to find them")
    replay.add_argument("--crash-points", action="store_true", help="if the seed failed with that option")
    replay.add_argument("--all", action="store_true", help="also print every call of the disks")
    asked = parser.parse_args(arguments)
    if asked.command == "planted":
        return script_runs.find_planted(asked.seeds, asked.processes, known=asked.known)
    if asked.command in script_runs.FAMILIES:
        if asked.replay is not None:
            return script_runs.replay(asked.command, asked.replay)
        return script_runs.run(asked.command, asked.seeds, asked.processes)
    if asked.command == "replay":
        return runs.replay(asked.seed, everything=asked.all, explore=asked.crash_points)
    return runs.run_seeds(asked.seeds, asked.processes, explore=asked.crash_points)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets must not depend on the process
        os.execve(sys.executable, [sys.executable, "-m", "lab", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main(sys.argv[1:]))
