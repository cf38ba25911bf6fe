"""`giornata simulate`: the real control plane on a virtual clock, with a modeled fleet."""

import logging
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.tools.simulate_affinity import ABOUT, NODES, SCENARIO, simulate_affinity
from giornata.cli.tools.simulate_audits import ABOUT_AUDITS, AUDITS, simulate_audits
from giornata.cli.ui.output import EXIT_FAILED, Output, reporting
from giornata.cli.ui.text import duration
from giornata.domain.errors import Fault, InvalidInput, install_hint

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
        str | None, typer.Argument(metavar="SCENARIO", help="The scenario; --list names them.", show_default=False)
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Jobs to play. Default: as many as the scenario has.", show_default=False
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most nodes. Default: in proportion to the jobs.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Equal seeds give equal runs.")] = 0,
    opened: Annotated[
        bool, typer.Option("--open", help="Draw the run, and open the pictures in the browser.")
    ] = False,
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --open: draw this saved run in the same pictures. May be of another policy or version.",
            show_default=False,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write figures and curves of the run, for --compare.", show_default=False),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Say which scenarios there are.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Play weeks of a fleet in a minute, on a virtual clock.

    The control plane is the one that ships; providers and machines are modeled.
    """
    with reporting(as_json) as out:
        # That a provider is away for an hour is part of a scenario.
        logging.getLogger("giornata.loops").setLevel(logging.CRITICAL)
        if compare is not None and not opened:
            raise InvalidInput([Fault(where="--compare", message="draws pictures", hint="give --open, too")])
        _check_extra()
        of_rules = {SCENARIO: simulate_affinity, AUDITS: simulate_audits}
        if scenario in of_rules:
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
            raise InvalidInput([Fault(where="scenario", message=f"there is no {scenario}", hint=hint)])
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
    rows += [(SCENARIO, "", str(NODES), ABOUT), (AUDITS, "", "", ABOUT_AUDITS)]
    out.table(("scenario", "jobs", "nodes", "what happens"), rows, right=(1, 2), prose=(3,))
    listed = [
        {"name": each.name, "jobs": each.jobs, "nodes": each.nodes, "about": each.about}
        for each in SCENARIOS.values()
    ]
    listed.append({"name": SCENARIO, "jobs": None, "nodes": NODES, "about": ABOUT})
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
