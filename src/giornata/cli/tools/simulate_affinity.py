"""`giornata simulate affinity`: routing of pictures to nodes that hold their models."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import typer

from giornata.cli.ui.output import EXIT_FAILED, Output

if TYPE_CHECKING:
    from giornata.simulate.affinity.cases import AffinityReport, CaseResult

SCENARIO = "affinity"
ABOUT = "Pictures with 1,000 base models on 100 nodes, over five seeds: how often a model is loaded."
SEEDS = 5
NODES = 100


def simulate_affinity(out: Output, *, seed: int, nodes: int | None) -> None:
    """Play the cases with five seeds, and print their figures. Exits with 1 when a mark does not hold."""
    from giornata.simulate.affinity.cases import play

    report = play(seeds=range(seed, seed + SEEDS), nodes=nodes or NODES)
    _show(out, report)
    told = report.as_json()
    out.result(told)
    if not told["ok"]:
        raise typer.Exit(EXIT_FAILED)


def _show(out: Output, report: "AffinityReport") -> None:
    from giornata.simulate.affinity.cases import reference

    out.say(f"{SCENARIO}, seeds {report.seeds[0]} to {report.seeds[-1]}; means over the seeds")
    out.say("")
    rows = []
    for case, results in zip(report.cases, report.results, strict=True):
        against = reference(case.setting, report.policy)
        loads = [each.loads_per_request for each in results]
        rows.append(
            (
                case.name,
                f"{fmean(loads):.3f}",
                f"{min(loads):.3f}–{max(loads):.3f}",
                f"{against['random_loads']:.3f}",
                f"{against['fewest_loads']:.3f}",
                f"{fmean(each.mean_wait_s for each in results):.1f} s",
                f"{fmean(each.p95_wait_s for each in results):.1f} s",
                f"{max(each.overrun for each in results):.2f}",
                case.about,
            )
        )
    heads = ("case", "loads", "range", "random", "bound", "wait", "p95", "overrun", "")
    out.table(heads, rows, right=(1, 2, 3, 4, 5, 6, 7), prose=(8,))
    out.say("")
    for line in _after_outages([each for results in report.results for each in results]):
        out.say(line)
    out.say("")
    marks = [
        (each.mark, f"{each.value:.2f}", f"at most {each.at_most:.2f}", "holds" if each.holds else "does not hold")
        for each in report.marks
    ]
    out.table(("mark", "", "", ""), marks, right=(1,))


def _after_outages(results: "Sequence[CaseResult]") -> Iterator[str]:
    """Say how loads went on after the outage, and when the queue was as before, beside the shortest time."""
    figures = (
        ("loads in the first ten minutes", "{:.3f}", [each.loads_within_ten_minutes for each in results]),
        ("loads in the next ten minutes", "{:.3f}", [each.loads_in_next_ten_minutes for each in results]),
        ("queue as before", "{:.0f} s", [each.drained_after_s for each in results]),
        ("waits as before", "{:.0f} s", [each.waits_back_after_s for each in results]),
        ("shortest possible", "{:.0f} s", [each.shortest_drain_s for each in results]),
    )
    for name, form, values in figures:
        if known := [value for value in values if value is not None]:
            mean, least, most = (form.format(value) for value in (fmean(known), min(known), max(known)))
            yield f"after the outage, {name}: {mean} ({least} to {most})"
