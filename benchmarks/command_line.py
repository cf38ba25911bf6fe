"""How long the command line takes to say something, against a bare Python: `python -m benchmarks.command_line`.

Each round runs all commands by turns, each in a process of its own. CPU time (user and system) of the process, the
median of the rounds with the least and the most; the ratio is each round's own. Prints a table, then one JSON line.
"""

import argparse
import os
import resource
import subprocess
import sys

from benchmarks.rig.figures import conclude, machine, spread, spread_words

BARE = "python -c pass"
MAIN = [sys.executable, "-c", "from giornata.cli import main; main()"]
AIM = 20
COMMANDS: dict[str, tuple[list[str], dict[str, str]]] = {
    BARE: ([sys.executable, "-c", "pass"], {}),
    "giornata --help": ([*MAIN, "--help"], {}),
    "giornata --version": ([*MAIN, "--version"], {}),
    "giornata train --help": ([*MAIN, "train", "--help"], {}),
    "completion of `giornata pre`": (
        [sys.executable, "-c", "from giornata.cli.main import app; app(prog_name='giornata')"],
        {"_GIORNATA_COMPLETE": "complete_bash", "COMP_WORDS": "giornata pre", "COMP_CWORD": "1"},
    ),
}


def cpu_ms(command: list[str], environment: dict[str, str]) -> float:
    """CPU time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def main() -> None:
    """Run, print, conclude."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    about = machine()
    times_ms: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds + 1):
        for name, (command, environment) in COMMANDS.items():
            times_ms[name].append(cpu_ms(command, environment))
    result: dict[str, object] = {}
    print(f"{'':<32}{'CPU, ms':<26}times a bare Python")
    for name, values in times_ms.items():
        # The first round warms the disk cache.
        ratios = [each / bare for each, bare in zip(values[1:], times_ms[BARE][1:], strict=True)]
        result[name] = {"cpu_ms": spread(values[1:], 1), "times_bare": spread(ratios, 1)}
        print(f"{name:<32}{spread_words(spread(values[1:], 1)):<26}{spread_words(spread(ratios, 1))}")
    print(f"aim: giornata --help in at most {AIM} times a bare Python")
    conclude({"machine": about, "rounds": rounds, "commands": result})


if __name__ == "__main__":
    main()
