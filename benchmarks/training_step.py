"""What a training step costs, against another version: `python -m benchmarks.training_step --against COMMIT`.

An engine of each version stands side by side, with one CPU thread, and both train jobs of one spec by turns: each
round trains one job on each, in changing order. Told are CPU milliseconds of a step, of the engine's whole process
between two steps of a job, and the ratio of each round: the median with the least and the greatest. Prints a table,
then one JSON line; returns 1 when the median of the ratios is above --most.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rig.against import OURS, THEIRS, checked_out
from benchmarks.rig.figures import conclude, machine, spread, spread_words
from benchmarks.rig.training_runs import WARM_UP_STEPS, Session, Work
from benchmarks.train import model_of, pictures_in


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, metavar="COMMIT")
    parser.add_argument("--size", choices=("tiny", "medium"), default="tiny", help="of the model that is built")
    parser.add_argument("--resolution", type=int, default=64, help="side of the square, in pixels")
    parser.add_argument("--precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--most", type=float, default=1.03, help="ratio that is not too much")
    return parser.parse_args(arguments)


def step_cpu_ms(session: Session, number: int) -> float:
    """Train one job, and return the CPU milliseconds of a step between the first that counts and the last."""
    session.train(number)
    steps = sorted(step for step in session.cpu_s_at if step >= WARM_UP_STEPS)
    first, last = steps[0], steps[-1]
    return (session.cpu_s_at[last] - session.cpu_s_at[first]) / (last - first) * 1e3


def measure(options: argparse.Namespace, source: Path, home: Path) -> dict[str, list[float]]:
    """The CPU milliseconds of a step in each round, of both versions."""
    work = Work(
        model=model_of(options.size, home),
        pictures=pictures_in(home / "pictures", options.resolution),
        resolution=options.resolution,
        precision=options.precision,
        rank=options.rank,
        batch=options.batch,
        steps=options.steps,
        jobs=1,
        device="cpu",
        threads=1,
    )
    sessions = {OURS: Session(work, home), THEIRS: Session(work, home, source=source)}
    found: dict[str, list[float]] = {name: [] for name in sessions}
    try:
        for session in sessions.values():  # loads the base, and is not kept
            step_cpu_ms(session, 0)
        for number in range(1, options.rounds + 1):
            for name in sorted(sessions, reverse=bool(number % 2)):
                found[name].append(step_cpu_ms(sessions[name], number))
    finally:
        for session in sessions.values():
            session.end()
    return found


def main(arguments: Sequence[str]) -> int:
    options, about = options_of(arguments), machine()
    with tempfile.TemporaryDirectory() as name, checked_out(options.against) as source:
        found = measure(options, source, Path(name))
    ratios = [ours / theirs for ours, theirs in zip(found[OURS], found[THEIRS], strict=True)]
    told = {name: spread(values) for name, values in found.items()} | {"ratio": spread(ratios, 3)}
    print("| | median (least to greatest) |\n|---|---|")
    for name in (OURS, THEIRS):
        print(f"| {name}, CPU ms of a step | {spread_words(told[name])} |")
    print(f"| ratio | {spread_words(told['ratio'])} |")
    conclude({"benchmark": "training_step", **vars(options), "machine": about, **told})
    return 1 if told["ratio"]["median"] > options.most else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
