"""`giornata simulate audits`: how soon replay audits find liars, and what they cost."""

from dataclasses import replace

import typer

from giornata.cli.ui.output import EXIT_FAILED, Output

AUDITS = "audits"
ABOUT_AUDITS = "Replay audits of 120 machines with liars, over three seeds: how soon each liar is out."
SEEDS_OF_AUDITS = 3


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
