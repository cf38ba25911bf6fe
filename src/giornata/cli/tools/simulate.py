"""`giornata simulate`: the real control plane on a virtual clock, with a modeled fleet."""

import logging
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.ui.output import EXIT_FAILED, Output, reporting
from giornata.cli.ui.text import duration
from giornata.domain.errors import Fault, InvalidInput, install_hint

if TYPE_CHECKING:
    from giornata.simulate.affinity.cases import AffinityReport, CaseResult

AFFINITY = "affinity"
ABOUT_AFFINITY = "Pictures with 1,000 base models on 100 nodes, over five seeds: how often a model is loaded."
SEEDS_OF_AFFINITY = 5
NODES_OF_AFFINITY = 100
AUDITS = "audits"
ABOUT_AUDITS = "Replay audits of 120 machines with liars, over three seeds: how soon each liar is out."
SEEDS_OF_AUDITS = 3
OURS = "Giornata"

if TYPE_CHECKING:
    from giornata.cli.tools.simulate_page import SavedRun
    from giornata.simulate.run import SimulationResult
    from giornata.simulate.scenario import Scenario


def register(app: typer.Typer) -> None:
    """Add the command `simulate` to `app`."""
    app.command("simulate")(simulate)


def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="SCENARIO", help="Name of the scenario, as --list shows it.", show_default=False),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Number of jobs. Default: as many as the scenario has.", show_default=False
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Maximum number of nodes. Default: in proportion to the jobs.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Seed of the random draws. Equal seeds give equal runs.")
    ] = 0,
    opened: Annotated[
        bool, typer.Option("--open", help="Draw charts of the run, and open them in the browser.")
    ] = False,
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --open: draw this saved run in the same charts, for example one of another version.",
            show_default=False,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Save figures and curves of the run in this file, for --compare.", show_default=False
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the scenarios.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Simulate weeks of a fleet in a minute, on a virtual clock.

    The real control plane runs; providers and machines are simulated.
    """
    with reporting(as_json) as out:
        # That a provider is away for an hour is part of a scenario.
        logging.getLogger("giornata.loops").setLevel(logging.CRITICAL)
        if compare is not None and not opened:
            raise InvalidInput([Fault(where="--compare", message="applies only with --open", hint="add --open")])
        _check_extra()
        of_rules = {AFFINITY: simulate_affinity, AUDITS: simulate_audits}
        if scenario in of_rules:
            _check_alone(scenario, {"--open": opened, "--save": save is not None, "--jobs": jobs is not None})
            of_rules[scenario](out, seed=seed, nodes=nodes)
            return
        from giornata.simulate.results.report import summary
        from giornata.simulate.run import played
        from giornata.simulate.scenarios import SCENARIOS, sized

        if listed or scenario is None:
            _list(out)
            return
        if scenario not in SCENARIOS:
            hint = f"one of {', '.join((*SCENARIOS, *of_rules))}"
            raise InvalidInput([Fault(where="scenario", message=f"there is no scenario {scenario}", hint=hint)])
        scene = sized(SCENARIOS[scenario], jobs=jobs, nodes=nodes)
        beside = None if compare is None else _saved(compare, scene, seed=seed)
        with (
            naming(f"{scenario} with --seed {seed}"),
            played(scene, seed=seed) as ran,
        ):
            told = summary(ran)
            page = _drawn(ran, told, opened=opened, beside=beside, save=save)
        if page is not None:
            _open(out, page)
        _tell(out, told, wall_s=ran.wall_s, cpu_s=ran.cpu_s)
        conclude(out, told)


def _check_alone(scenario: str, given: dict[str, bool]) -> None:
    """Raise InvalidInput with each option that was given and that this scenario has no use for."""
    message = f"is no option of the scenario {scenario}"
    faults = [Fault(where=name, message=message, hint="leave it out") for name, is_given in given.items() if is_given]
    if faults:
        raise InvalidInput(faults)


def conclude(out: Output, told: dict[str, Any]) -> None:
    """The object, and when an invariant broke a last line about it and the status 1.

    With --json the object is all of standard output, and the last line is the last of standard error.
    """
    from giornata.cli.tools.simulate_words import broken_words

    out.result(told)
    if not told["ok"]:
        out.say(broken_words(told))
        raise typer.Exit(EXIT_FAILED)


def _saved(file: Path, scene: "Scenario", *, seed: int) -> "SavedRun":
    """Return a run that was saved, before anything is played. Raises InvalidInput."""
    from giornata.cli.tools.simulate_page import read_run

    alike = {"scenario": scene.name, "seed": seed, "jobs": scene.jobs, "nodes": scene.nodes}
    told, run = read_run(file, alike=alike)
    return told, replace(run, name=file.stem) if run.name == OURS else run


def _drawn(
    ran: "SimulationResult", told: dict[str, Any], *, opened: bool, beside: "SavedRun | None", save: Path | None
) -> Path | None:
    """Save the run where that is asked for. With `opened`, write its pictures into a new folder; return the file to
    open."""
    from giornata.cli.tools.simulate_page import save_run, write_pictures
    from giornata.simulate.results.drawn_run import drawn

    if not opened and save is None:
        return None
    run = drawn(ran, name=OURS)
    if save is not None:
        save_run(save, told=told, run=run)
    if not opened:
        return None
    folder = Path(tempfile.mkdtemp(prefix=f"giornata-{ran.scenario.name}-"))
    ours: SavedRun = (told, run)
    runs = [ours] if beside is None else [beside, ours]
    return write_pictures(folder, about=ran.scenario.about, runs=runs)


def _open(out: Output, page: Path) -> None:
    """Open the page in the person's browser, and say where it lies: there may be no browser."""
    webbrowser.open(page.as_uri())
    out.hint(f"pictures: {page}")


def _check_extra() -> None:
    """Check that the server's libraries, which the simulator uses, are installed. Raises InvalidInput."""
    try:
        import giornata.simulate.run  # noqa: F401
    except ModuleNotFoundError as error:
        message, hint = f"{error.name} is not installed", install_hint("server")
        raise InvalidInput([Fault(where="installation", message=message, hint=hint)]) from None


@contextmanager
def naming(run: str) -> Iterator[None]:
    """Add the run's name to any exception that stops the run, so that a person can repeat the run."""
    try:
        yield
    except Exception as error:  # any: it goes on as it came, with a last line more
        error.add_note(f"stopped: {run}: {type(error).__name__}: {error}")
        raise


def _list(out: Output) -> None:
    from giornata.simulate.scenarios import SCENARIOS

    rows = [(each.name, str(each.jobs), str(each.nodes), each.about) for each in SCENARIOS.values()]
    rows += [(AFFINITY, "", str(NODES_OF_AFFINITY), ABOUT_AFFINITY), (AUDITS, "", "", ABOUT_AUDITS)]
    out.table(("scenario", "jobs", "nodes", "what happens"), rows, right=(1, 2), prose=(3,))
    listed = [
        {"name": each.name, "jobs": each.jobs, "nodes": each.nodes, "about": each.about}
        for each in SCENARIOS.values()
    ]
    listed.append({"name": AFFINITY, "jobs": None, "nodes": NODES_OF_AFFINITY, "about": ABOUT_AFFINITY})
    listed.append({"name": AUDITS, "jobs": None, "nodes": None, "about": ABOUT_AUDITS})
    out.result({"scenarios": listed})


def _tell(out: Output, told: dict[str, Any], *, wall_s: float, cpu_s: float) -> None:
    from giornata.cli.tools.simulate_words import finding_rows, rows

    out.say(f"{told['scenario']}, seed {told['seed']}; trainer: {told['trainer']}")
    out.say("")
    out.table(("", "", ""), rows(told), right=(1,), prose=(2,))
    out.say("")
    for row in finding_rows(told):
        out.say(row)
    out.say("")
    out.hint(f"played in {duration(wall_s)}, {cpu_s:.1f} s of computing")


def simulate_audits(out: Output, *, seed: int, nodes: int | None) -> None:
    """Play the cases, and print their figures. Exits with 1 when a sound machine is out, or audits cost too much."""
    from giornata.simulate.audits.audit_cases import CASES, play_liars

    sized = [
        case if nodes is None else replace(case, setting=replace(case.setting, machines=nodes)) for case in CASES
    ]
    found = [play_liars(case, seeds=range(seed, seed + SEEDS_OF_AUDITS)) for case in sized]
    rows = [
        (
            each.case.name,
            f"{each.case.setting.share:.1%}",
            f"{each.cost:.2%}",
            f"{each.mean_stretches:.0f}",
            str(each.longest_stretches),
            f"{each.liars - each.liars_left}/{each.liars}",
            str(each.sound_out),
            each.case.about,
        )
        for each in found
    ]
    heads = ("case", "audited", "cost", "stretches", "longest", "liars out", "sound out", "")
    out.table(heads, rows, right=(1, 2, 3, 4, 5, 6), prose=(7,))
    ok = all(each.ok for each in found)
    out.result({"cases": [each.as_json() for each in found], "ok": ok})
    if not ok:
        raise typer.Exit(EXIT_FAILED)


def simulate_affinity(out: Output, *, seed: int, nodes: int | None) -> None:
    """Play the cases with five seeds, and print their figures. Exits with 1 when a mark does not hold."""
    from giornata.simulate.affinity.cases import play

    report = play(seeds=range(seed, seed + SEEDS_OF_AFFINITY), nodes=nodes or NODES_OF_AFFINITY)
    _show_affinity(out, report)
    told = report.as_json()
    out.result(told)
    if not told["ok"]:
        raise typer.Exit(EXIT_FAILED)


def _show_affinity(out: Output, report: "AffinityReport") -> None:
    from giornata.simulate.affinity.cases import reference

    out.say(f"{AFFINITY}, seeds {report.seeds[0]} to {report.seeds[-1]}; means over the seeds")
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
