"""What `giornata pretrain size` shows, in a pipe and on terminals of 120 and 80 columns; and who refuses its file."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from giornata.cli.main import app
from giornata.cli.output import Output
from giornata.cli.pretrain_size_words import findings, say_sizes
from giornata.pretrain.planning.measured import Measured, MeasuredPhase, Rate
from giornata.pretrain.recipes import sd2_base
from giornata.pretrain.size import report_of
from giornata.protocol.pretraining import Mode


def report(
    *, encoders: int = 8, measured_on: int = 32, spread: float = 0.02, cpu: bool = True, start_s: float = 0.0
) -> dict[str, Any]:
    run = sd2_base()
    run = replace(
        run,
        encode=replace(run.encode, mode=Mode.ONLINE, encoders=encoders),
        workers=replace(run.workers, trainer_usd_per_h=4.0),
    )
    phases = tuple(
        MeasuredPhase(
            name=phase.name,
            resolution=phase.resolution,
            trainers=Rate(images_per_s=1000.0 * measured_on / 32, spread=spread),
            encoder=Rate(images_per_s=50.0, spread=0.0),
            cpu=Rate(images_per_s=60.0, spread=0.0) if cpu else None,
            row_bytes=174_000,
        )
        for phase in run.phases
    )
    measured = Measured(
        name=run.name,
        model="sd2",
        mode=Mode.ONLINE,
        trainers=32,
        trainers_measured=measured_on,
        trainer_device="NVIDIA H200",
        encoder_device="NVIDIA A10G",
        headroom=1.1,
        availability=0.9,
        phases=phases,
        encoder_start_s=start_s,
    )
    return report_of(run, measured, ["A note."])


def shown(columns: int | None, what: dict[str, Any]) -> str:
    out, screen = Output(as_json=False), io.StringIO()
    terminal = columns is not None
    out.console = Console(
        file=screen,
        width=columns or 200,
        force_terminal=terminal,
        highlight=False,
        soft_wrap=True,
        color_system=None,
    )
    say_sizes(what, out)
    return screen.getvalue()


def test_a_row_for_each_phase_with_what_is_needed_and_what_is_configured() -> None:
    lines = shown(None, report()).splitlines()
    row = next(line for line in lines if line.startswith("256"))
    assert " ".join(row.split()) == "256 256 1,000/s 50.0/s 60.0/s 25 19 174.0 MB/s 8 feed 36%"
    assert "all rates were measured" in lines
    assert "A note." in lines


def test_estimates_are_marked() -> None:
    text = shown(None, report(measured_on=1))
    assert "~1,000/s" in text
    assert "estimated from fewer trainers" in text
    assert "all rates were measured" not in text


def test_without_data_no_cpus_are_named() -> None:
    row = next(line for line in shown(None, report(cpu=False)).splitlines() if line.startswith("512"))
    assert row.split()[4:7] == ["–", "25", "–"]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_holds_it(columns: int) -> None:
    table = [line for line in shown(columns, report()).splitlines() if line.startswith(("phase", "256", "512"))]
    assert len(table) == 3
    assert max(len(line.rstrip()) for line in table) <= columns


def test_too_few_too_many_and_enough() -> None:
    few = list(findings(report(encoders=8)))
    assert "with the configured 8 encoders trainers would wait 64% of the time, 81.92 USD an hour" in few[0]
    assert "set encoders = 25" in few[0]
    assert "25 of the configured 30 encoders are enough" in next(iter(findings(report(encoders=30))))
    assert list(findings(report(encoders=25))) == []


def test_what_bridges_the_absence_of_an_encoder_is_said_where_it_was_measured() -> None:
    (said,) = findings(report(encoders=25, start_s=30.0))
    assert said.startswith("An encoder that is lost takes 30 s to come back.")
    assert "meanwhile is 261.0 MB" in said  # 30 s of 50 rows of 174 kB


def test_what_scatters_is_pointed_out() -> None:
    assert "scatter by 40%" in next(iter(findings(report(encoders=25, spread=0.4))))


def test_plan_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(report()))
    assumed = tmp_path / "assumed.toml"
    assumed.write_text('trainers = ["4xp5en.48xlarge"]\n')
    arguments = ["pretrain", "plan", "sd2_base", "--assume", str(assumed), "--json", "--measured"]
    told = json.loads(CliRunner().invoke(app, [*arguments, str(path)]).stdout.splitlines()[-1])
    training = next(each for each in told["choices"] if each["mode"] == "online")["phases"][0]["training"]
    assert (training["images_per_s"], training["estimated"]) == (1000.0, False)
    refused = CliRunner().invoke(app, [*arguments, str(tmp_path / "none.json")])
    assert refused.exit_code == 2
    assert "pretrain size CONFIG --out" in refused.stdout
