"""`giornata pretrain plan`, in a pipe and on terminals of 100 and 80 columns."""

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from giornata.cli.main import app
from giornata.cli.pretraining.pretrain_plan import say_ranking
from giornata.cli.ui.output import Output
from giornata.pretrain.planning.facts import load_facts
from giornata.pretrain.planning.ranking import rank
from giornata.pretrain.planning.request import request_of, schedule_of
from giornata.pretrain.recipes import sd2_base

FACTS = load_facts()


def run(*arguments):
    return CliRunner().invoke(app, ["pretrain", "plan", *arguments])


def on_terminal(columns, say):
    """What a terminal so wide shows."""
    out, screen = Output(as_json=False), io.StringIO()
    out.console = Console(
        file=screen, width=columns, force_terminal=True, highlight=False, soft_wrap=True, color_system=None
    )
    say(out)
    return screen.getvalue()


def test_the_recipe_as_one_object():
    ran = run("sd2_base", "--json")
    assert ran.exit_code == 0
    told = json.loads(ran.stdout.strip())
    assert (told["name"], len(told["choices"])) == ("sd2-base", 24)
    assert told["reasons"]
    assert told["verdict"][0].startswith("The run as configured is the cheapest: 8 H100")
    assert told["rows_that_decide"]["below"] == "1xlambda-8xh100 offline lambda-8xh100"


def test_the_verdict_stands_before_the_table_and_old_prices_are_named():
    lines = run("sd2_base").stdout.splitlines()
    cheapest = next(place for place, line in enumerate(lines) if "is the cheapest" in line)
    table = next(place for place, line in enumerate(lines) if line.startswith("trainers"))
    assert cheapest < table and lines[cheapest + 1].startswith("The number of different rows decides.")
    assert any(line.startswith("Prices older than 4 months: ") for line in lines)


def test_pretrain_plan_prints_each_choice_as_one_line_in_a_pipe():
    lines = run("sd2_base").stdout.splitlines()
    heading = next(place for place, line in enumerate(lines) if line.startswith("trainers"))
    assert lines[heading].split() == [
        "trainers",
        "GPUs",
        "mode",
        "encoders",
        "days",
        "GPU",
        "h",
        "train",
        "encode",
        "store",
        "total",
    ]
    rows = lines[heading + 1 : heading + 25]
    assert all(row.split()[-1].startswith(("$", "~$")) for row in rows)
    assert lines[heading + 25].startswith("~")


@pytest.mark.parametrize("columns", [100, 80])
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("changes", [{}, {"prices": "seed"}, {"trainers": ["2xp4d"], "modes": ["offline", "hybrid"]}])
def test_a_ranking_fits_the_terminal_and_nothing_is_cut(columns, every, changes):
    ranking = rank(request_of(schedule_of(sd2_base()) | changes), FACTS)
    shown = on_terminal(columns, lambda out: say_ranking(ranking, out, every=every))
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= columns
    assert "…" not in shown
    assert f"${ranking.best.bill.total_usd:,.0f}" in shown


def test_the_terminal_shows_the_chief_choices_and_says_how_to_see_the_others():
    ranking = rank(request_of(schedule_of(sd2_base())), FACTS)
    chief = on_terminal(100, lambda out: say_ranking(ranking, out, every=False))
    everything = on_terminal(100, lambda out: say_ranking(ranking, out, every=True))
    assert "15 more with --all" in chief
    assert "--all" not in everything
    for cluster in ("4 p4de", "2 p4d ", "4 p5 ", "4 p5en", "1 p5 ", "1 lambda-8xh100"):
        assert cluster in chief
    assert len(everything.splitlines()) == len(chief.splitlines()) + 15


def test_pretrain_plan_reports_all_faults_of_assumptions_file(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text('headroom = 0.1\ntrainers = ["9p4de"]\n')
    ran = run("sd2_base", "--assume", str(file))
    assert ran.exit_code == 2
    assert "headroom: input should be greater than or equal to 1; it is 0.1" in ran.stderr
    assert "trainers.0: cannot be '9p4de'" in ran.stderr
    told = json.loads(run("sd2_base", "--assume", str(file), "--json").stdout)
    assert {fault["where"] for fault in told["error"]["faults"]} == {"headroom", "trainers.0"}


def test_plan_without_a_price_fails(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text('prices = "seed"\ntrainers = ["4xp5"]\n')
    ran = run("sd2_base", "--assume", str(file))
    assert ran.exit_code == 1
    assert "Nothing can be priced" in ran.stdout
    assert "has no on-demand price of p5.48xlarge" in ran.stdout


def test_the_group_has_help():
    shown = CliRunner().invoke(app, ["pretrain", "--help"]).stdout
    assert "plan" in shown
