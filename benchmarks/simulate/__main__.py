"""Every scenario of the simulator, ancestor beside ours: `python -m benchmarks.simulate`.

Plays `ancestor-1000` under the ancestor's policy, then the same with ours and the same trainer (what differs is
policy), then ours with the estimated speed-up of the trainer; then the other scenarios under both policies. Prints
what policy alone and the trainer alone gain, the table for docs/benchmark-log.md, how well the model fits what was
published, how far each run is from what the offer allows, and one JSON line.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.rig.figures import conclude, machine
from benchmarks.simulate.calibration import fit, misfits
from benchmarks.simulate.comparison import comparable, gain_rows, gains_of, played, summary
from benchmarks.simulate.plots import draw_all
from benchmarks.simulate.regret import regret_words
from giornata.cli.tools.simulate_page import save_run, write_pictures
from giornata.simulate.results.drawn_run import DrawnRun, drawn
from giornata.simulate.scenarios import SCENARIOS, sized

COLUMNS = (
    ("scenario", "scenario"),
    ("policy", "policy"),
    ("succeeded", "succeeded"),
    ("$ per job", "usd_per_job"),
    ("worst job, min", "worst_job_min"),
    ("$ per useful step", "usd_per_useful_step"),
    ("by hand", "by_hand"),
    ("makespan, h", "makespan_h"),
    ("billed, s", "billed_s"),
    ("useful, s", "useful_s"),
    ("lost, s", "lost_s"),
    ("idle, s", "idle_s"),
    ("start-up, s", "startup_s"),
)
# Their scheduler has no notion of several projects or fleets.
OURS_ALONE = {"flood", "price-spike", "ancestor-1000-our-trainer"}
POLICIES = {"giornata": "Giornata", "ancestor": "The ancestor"}
SMALLER = {"flood": (2000, 100)}  # 100,000 jobs take an hour: --full


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="flood with its 100,000 jobs on 2,000 nodes")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw every run into this folder")
    parser.add_argument("--pages", type=Path, metavar="DIR", help="write a page of each scenario into it")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="save each run, for giornata simulate --compare")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the jobs; the figures mean little")
    return parser.parse_args(arguments)


def play(name: str, policy: Any, options: argparse.Namespace) -> tuple[dict[str, Any], DrawnRun]:
    """Play a scenario under a policy; its summary and its curves."""
    scenario = SCENARIOS[name]
    if options.quick:
        scenario = sized(scenario, jobs=max(1, scenario.jobs // 20), nodes=min(scenario.nodes, 8))
    elif name in SMALLER and not options.full:
        jobs, nodes = SMALLER[name]
        scenario = sized(scenario, jobs=jobs, nodes=nodes)
    with played(scenario, seed=options.seed, policy=policy, keep_beats=options.plots is not None) as ran:
        told = summary(ran)
        if options.plots is not None:
            draw_all(ran, options.plots)
        curves = drawn(ran, name=POLICIES[policy])
    if policy == "giornata" and comparable(scenario):
        told["gained"] = gains_of(scenario, told)
    print(f"{name} ({policy}): {ran.wall_s:.1f} s, {ran.cpu_s:.1f} s of computing", file=sys.stderr)
    return {**told, "wall_s": round(ran.wall_s, 1), "cpu_s": round(ran.cpu_s, 1)}, curves


def main(arguments: list[str]) -> int:
    options, runs = options_of(arguments), []
    for name in options.scenarios:
        policies = ("giornata",) if name in OURS_ALONE else ("ancestor", "giornata")
        played_runs = [play(name, policy, options) for policy in policies]
        runs += [told for told, _ in played_runs]
        if options.runs is not None:
            for policy, (told, curves) in zip(policies, played_runs, strict=True):
                save_run(options.runs / f"{name}-{policy}.json", told=told, run=curves)
        if options.pages is not None:
            page = write_pictures(options.pages / name, about=SCENARIOS[name].about, runs=played_runs)
            print(f"{name}: {page}", file=sys.stderr)
    for run in runs:
        for row in gain_rows(run):
            print(f"{run['scenario']}: {row}")
        print(f"{run['scenario']} ({run['policy']}): {regret_words(run)}")
    print("| " + " | ".join(title for title, _ in COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for run in runs:
        print("| " + " | ".join(_cell(run[key]) for _, key in COLUMNS) + " |")
    for run in runs:
        missed = [name for name, held in run["invariants"].items() if not held]
        if missed:
            print(
                f"{run['scenario']} ({run['policy']}): "
                + "; ".join(f"{name}: {run['seen'][name]}" for name in missed)
            )
    fits = [run for run in runs if (run["scenario"], run["policy"]) == ("ancestor-1000", "ancestor")]
    for run in fits:
        for name, (ours, published) in fit(run).items():
            print(f"  {name:26} {ours:10.4f}   published {published:10.4f}")
    ours = [run for run in runs if run["policy"] == "giornata"]
    met = all(run["ok"] and run["goals_met"] for run in ours) and not (
        fits and not options.quick and misfits(fits[0])
    )
    conclude({"benchmark": "simulate", "machine": machine(), "quick": options.quick, "runs": runs, "met": met})
    return 0


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.7f}" if value < 0.001 else f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
