"""What `giornata pretrain run --synthetic` shows, and which options go together."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from giornata.cli.main import app
from giornata.cli.pretraining.pretrain_run import findings, say_rates
from giornata.cli.ui.output import Output
from giornata.pretrain.recipes import sd2_base
from giornata.pretrain.synthetic import report_of
from giornata.protocol.pretraining import Mode


def report(*, encoders: int = 8, measured_on: int = 8) -> dict[str, Any]:
    run = sd2_base()
    run = replace(run, encode=replace(run.encode, mode=Mode.ONLINE, encoders=encoders))
    loop = {phase.name: (1000.0 * measured_on / 8, 128) for phase in run.phases}
    encoded = {phase.name: (50.0, 174_000) for phase in run.phases}
    return report_of(
        run, Mode.ONLINE, measured_on, loop=("NVIDIA H200", loop), encoded=("NVIDIA A10G", encoded), notes=["A note."]
    )


def shown(columns: int | None, what: dict[str, Any]) -> str:
    out, screen = Output(as_json=False), io.StringIO()
    out.console = Console(
        file=screen,
        width=columns or 200,
        force_terminal=columns is not None,
        highlight=False,
        soft_wrap=True,
        color_system=None,
    )
    say_rates(what, out)
    return screen.getvalue()


def test_a_row_for_each_phase_has_both_rates_the_micro_batch_and_the_encoders() -> None:
    lines = shown(None, report()).splitlines()
    row = next(line for line in lines if line.startswith("256"))
    assert row.split() == ["256", "256", "128", "1,000/s", "50.0/s", "22", "2.8"]
    assert "8 trainers on NVIDIA H200, encoders on NVIDIA A10G" in lines
    assert "A note." in lines


def test_estimated_rates_are_marked_with_tilde() -> None:
    text = shown(None, report(measured_on=1))
    assert "~1,000/s" in text
    assert "~ is estimated from fewer trainers" in text
    assert "~" not in shown(None, report())


def test_a_terminal_of_80_columns_holds_it() -> None:
    assert max(len(line.rstrip()) for line in shown(80, report()).splitlines()) <= 80


def test_too_few_too_many_and_enough() -> None:
    few = list(findings(report(encoders=8)))
    assert "with the configured 8 encoders trainers would wait 60% of the time; set encoders = 22" in few[0]
    assert "22 of the configured 30 encoders are enough" in next(iter(findings(report(encoders=30))))
    assert list(findings(report(encoders=22))) == []


@pytest.mark.parametrize(("words", "where"), [(["--steps", "3"], "--steps"), (["--out", "x.toml"], "--out")])
def test_options_of_the_other_kind_of_run_are_refused(words: list[str], where: str) -> None:
    ran = CliRunner().invoke(app, ["pretrain", "run", "shapes", *words])
    assert ran.exit_code == 2
    assert f"{where}: cannot go with" in ran.stderr
