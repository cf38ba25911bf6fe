"""The page with the pictures of simulated runs, made of the dashboard's components. It needs no server."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from giornata.dashboard.rendering import write_page
from giornata.dashboard.words import duration
from giornata.domain.errors import Fault, InvalidInput
from giornata.simulate.results.drawn_run import DrawnRun, RunMark

Told = Mapping[str, Any]
SavedRun = tuple[Told, DrawnRun]
"""The summary and the curves of a run."""
KINDS = {
    "price": "a price changes",
    "quarantine": "a machine is quarantined",
    "replaced": "a machine is replaced",
    "trouble": "a trouble begins or ends",
}


def _share(name: str) -> Callable[[Told], str]:
    return lambda told: f"{told[name] / max(1, told['billed_s']):.1%}"


FIGURES: Mapping[str, Callable[[Told], str]] = {
    "Jobs that succeeded": lambda told: f"{told['succeeded']:,} of {told['jobs']:,}",
    "By hand": lambda told: f"{told['by_hand']:,}",
    "Cost of a job": lambda told: f"${told['usd_per_job']:.4f}",
    "Median job": lambda told: duration(60 * told["median_job_min"]),
    "Worst job": lambda told: duration(60 * told["worst_job_min"]),
    "Until the last job was done": lambda told: duration(3600 * told["makespan_h"]),
    "Useful, of what is billed": _share("useful_s"),
    "Lost, of what is billed": _share("lost_s"),
    "Idle, of what is billed": _share("idle_s"),
    "Start-up, of what is billed": _share("startup_s"),
}


def save_run(file: Path, *, told: Told, run: DrawnRun) -> None:
    """Write the summary and the curves of a run as JSON, which `read_run` reads."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"told": dict(told), "run": run.as_json()}) + "\n", "utf-8")


def read_run(file: Path, *, alike: Told) -> SavedRun:
    """Return a run that was saved. Raises InvalidInput for a file that has none, and for a run that is not
    `alike`: scenario, seed, jobs and nodes have to be those.
    """
    where, hint = (
        f"--compare {file}",
        "give a file of giornata simulate --save, or of benchmarks.simulate --runs",
    )
    try:
        saved = json.loads(file.read_text("utf-8"))
        told, run = saved["told"], TypeAdapter(DrawnRun).validate_python(saved["run"])
        for figure in FIGURES.values():
            figure(told)
    except OSError as error:
        raise InvalidInput([Fault(where=where, message=error.strerror or "cannot be read", hint=hint)]) from None
    except (ValueError, TypeError, LookupError):
        raise InvalidInput([Fault(where=where, message="holds no run of the simulator", hint=hint)]) from None
    other = [f"{name} {told.get(name)}, not {value}" for name, value in alike.items() if told.get(name) != value]
    if other:
        hint = "play and save it with the same scenario, --seed, --jobs and --nodes"
        raise InvalidInput([Fault(where=where, message=f"has {', '.join(other)}", hint=hint)])
    return told, run


def write_pictures(folder: Path, *, about: str, runs: Sequence[tuple[Told, DrawnRun]]) -> Path:
    """Write the pictures of runs of one scenario into a folder, side by side; return the file to open.

    `runs` are the summary and the curves of each run, and `about` says what the scenario is.
    """
    told, shown = [each for each, _ in runs], [each for _, each in runs]
    by_mark: dict[RunMark, list[str]] = {}  # prices and troubles of a scenario are the same in every run
    for run in shown:
        for mark in run.marks:
            by_mark.setdefault(mark, []).append(run.name)
    used = {mark.kind for mark in by_mark}
    return write_page(
        folder,
        "simulation.html",
        title=told[0]["scenario"],
        lead=f"{about[:1].upper()}{about[1:]}. Seed {told[0]['seed']}, at most {told[0]['nodes']} nodes.",
        runs=json.dumps([run.as_json() for run in shown]),
        names=[run.name for run in shown],
        figures=[(name, [figure(each) for each in told]) for name, figure in FIGURES.items()],
        marks=[
            (", ".join(dict.fromkeys(names)), mark)
            for mark, names in sorted(by_mark.items(), key=lambda pair: pair[0].hour)
        ],
        kinds=[(kind, text) for kind, text in KINDS.items() if kind in used],
    )
