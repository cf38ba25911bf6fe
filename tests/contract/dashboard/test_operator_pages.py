"""What an operator sees of the last day: ends by reason, and the loops of the server."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path

from tests.fixtures.dashboard import HOUR_MS, PROJECT, DayClock, Furnished, forget_parts, furnished, pages_of
from tests.fixtures.people import ROOT, browser_of

from giornata.control.context import Context
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.stop_job import cancel
from giornata.control.loops import LoopStatus
from giornata.control.monitoring import read_gauges, read_last_day
from giornata.control.projects.projects import create_project
from giornata.control.projects.read_costs import read_costs
from giornata.control.projects.set_budget import set_project_budget, settle_budgets
from giornata.control.timestamps import instant
from giornata.protocol.project.admin import ROOT_PROJECT, CreateProject, SetBudget

OPERATOR = replace(ROOT, project_id=ROOT_PROJECT)


def text_of(installation: Furnished) -> str:
    forget_parts(installation)
    response = browser_of(installation.served, installation.operator).call(
        "GET", pages_of(installation)["operator-day"]
    )
    assert response.status_code == 200
    return response.text


def test_failures_of_the_last_day_stand_there_by_reason_and_older_ones_do_not(tmp_path: Path) -> None:
    with furnished(tmp_path) as installation:
        text = text_of(installation)
        for reason in ("preempted", "node driver", "bad data", "bad spec"):
            assert f">{reason}</td>" in text, reason
        assert ">succeeded</td>" not in text
        ctx = installation.served.ctx
        later = replace(ctx, clock=DayClock(ctx.clock.now_ms() + 25 * HOUR_MS))
        assert sum(read_last_day(ctx, OPERATOR).by_reason.values()) == 6
        assert read_last_day(later, OPERATOR).by_reason == {}


def test_an_operator_sees_what_is_spent_of_budgets_the_most_used_up_first(tmp_path: Path) -> None:
    with furnished(tmp_path) as installation:
        ctx, path = installation.served.ctx, pages_of(installation)["operator-installation"]
        operator = browser_of(installation.served, installation.operator)
        ctx.memory.project_budgets = None
        assert "has not looked at the budgets yet" in operator.call("GET", path).text
        create_project(ctx, OPERATOR, CreateProject(id="rich", name="Rich"))
        set_project_budget(ctx, OPERATOR, "rich", SetBudget(budget_micro_usd=9_000_000))
        both = SetBudget(budget_micro_usd=100_000_000, monthly_budget_micro_usd=4_000_000)
        set_project_budget(ctx, OPERATOR, PROJECT, both)
        settle_budgets(ctx)
        forget_parts(installation)
        text = operator.call("GET", path).text
        found = re.findall(r'"Budget">([^<]+)</td><td data-label="Spent" class="number">([^<]+)<', text)
        assert [spent.partition(" of ")[2] for _, spent in found][:2] == ["$4.00", "$100.00"]
        assert ("in all", "$0 of $9.00") in found[2:]
        assert found[0][0] == datetime.fromtimestamp(ctx.clock.now_ms() / 1000, tz=UTC).strftime("%Y-%m")
        assert not found[0][1].startswith("$0 ")
        assert browser_of(installation.served, installation.owner).call("GET", path).status_code == 404


def test_a_loop_that_fails_is_named_with_its_error_and_others_are_counted(tmp_path: Path) -> None:
    with furnished(tmp_path) as installation:
        assert "This server runs no loops." in text_of(installation)
        well = LoopStatus(name="lapse", every_s=5, runs=10, last_success_age_s=2)
        installation.served.app.state.loops_status = lambda: [well]
        assert "All 1 did their work." in text_of(installation)
        ill = LoopStatus(name="reap", every_s=30, runs=4, errors=3, errors_in_a_row=3, last_error="<b>no route</b>")
        installation.served.app.state.loops_status = lambda: [well, ill]
        text = text_of(installation)
        assert "1 loop of 2" in text
        assert "reap: &lt;b&gt;no route" in text


def test_the_page_of_fleets_says_what_each_loop_did_last(tmp_path: Path) -> None:
    with furnished(tmp_path) as installation:
        operator = browser_of(installation.served, installation.operator)
        path = pages_of(installation)["operator-loops"]
        assert f'hx-get="{path}"' in operator.call("GET", pages_of(installation)["operator-fleet"]).text
        done = LoopStatus(
            name="reconcile-spot", every_s=5, runs=3, last_done="<i>i-1</i> is gone", last_done_age_s=90.0
        )
        installation.served.app.state.loops_status = lambda: [done]
        text = operator.call("GET", path).text
        assert "&lt;i&gt;i-1&lt;/i&gt; is gone" in text
        assert "1 min 30 s ago" in text
        assert browser_of(installation.served, installation.owner).call("GET", path).status_code == 404


def test_a_fleet_shows_its_prices_as_a_line_and_in_a_table(tmp_path: Path) -> None:
    with furnished(tmp_path) as installation:
        operator = browser_of(installation.served, installation.operator)
        text = operator.call("GET", pages_of(installation)["operator-one-fleet"]).text
        assert "Price of one more node an hour: 3 changes, from $0.26 to $0.41" in text
        assert text.count('data-label="One more node an hour"') == 4
        # The line begins at $0.30 and ends at $0.38, of a drawing from $0.26 (72) to $0.41 (8).
        path = re.search(r'<path d="M0 ([0-9.]+)[^"]*V([0-9.]+)H1000"', text)
        assert path is not None
        assert (float(path[1]), float(path[2])) == (54.9, 20.8)
        refused = operator.call(
            "POST",
            pages_of(installation)["operator-one-fleet"] + "/scale",
            data={"csrf": operator.csrf_token, "min_nodes": "x", "max_nodes": "17"},
        )
        assert (refused.status_code, "price-line" in refused.text) == (400, True)
        assert 'value="x" aria-invalid="true"' in refused.text, "what was typed stays"
        assert 'value="17"' in refused.text


def test_an_operator_sees_the_use_of_billed_time_by_fleet_in_words_and_shares(tmp_path: Path) -> None:
    with furnished(tmp_path) as installation:
        path = pages_of(installation)["operator-installation"]
        text = browser_of(installation.served, installation.operator).call("GET", path).text
        bars = text.split('<div class="time-bar">')[1:]
        names = [re.findall(r"<strong>([^<]*)", bar)[0] for bar in bars]
        assert names[0] == "All fleets"
        assert set(names[1:]) == {"local", "spot"}
        for bar in bars:
            shares = [float(each) for each in re.findall(r"([0-9.]+) %", bar)]
            assert abs(sum(shares) - 100) < 0.5, bar
            assert all(word in bar for word in ("useful", "start-up", "idle", "lost"))
        ctx = installation.served.ctx
        costs = {each.fleet: each for each in read_costs(ctx, OPERATOR, day_before(ctx), None).fleets}
        assert (
            f"{costs['local'].useful_s / costs['local'].billed_s:.1%}".replace("%", " %")
            in bars[names.index("local")]
        )


def test_an_operator_reads_why_the_oldest_job_waits_and_what_is_wrong_with_fleets(tmp_path: Path) -> None:
    with furnished(tmp_path) as installation:
        ctx, path = installation.served.ctx, pages_of(installation)["operator-queue"]
        with ctx.store.begin() as tx:
            tx.fleets.update("spot", trouble="the provider's <b>quota</b> is used up")
            first, *_ = tx.fleets.instances("spot")
            tx.fleets.put_instance(replace(first, trouble="no capacity in this region"))
        operator = browser_of(installation.served, installation.operator)
        text = operator.call("GET", path).text
        assert f'href="/dashboard/projects/{PROJECT}/jobs/{installation.waiting_job}"' in text
        of_studio = replace(OPERATOR, project_id=PROJECT)
        because = get_job(ctx, of_studio, installation.waiting_job).waiting_because
        assert text.count("The oldest job") == 1
        assert "oldest" not in operator.call("GET", pages_of(installation)["operator-installation"]).text
        assert because and f"<strong>It waits:</strong> {escape(because)}." in text
        assert re.search(r">spot</a>: \d wanted, 3 there", text)
        assert "the provider&#39;s &lt;b&gt;quota&lt;/b&gt; is used up" in text
        fleet = operator.call("GET", pages_of(installation)["operator-one-fleet"]).text
        assert all("no capacity in this region" in each for each in (text, fleet)), "the words of the page Fleet"
        assert f'hx-get="{path}"' in operator.call("GET", pages_of(installation)["operator-home"]).text
        cancel(ctx, of_studio, installation.waiting_job)
        ctx.memory.remember_gauges(read_gauges(ctx), at_ms=ctx.clock.now_ms())
        forget_parts(installation)
        assert "No job waits." in operator.call("GET", path).text


def day_before(ctx: Context) -> datetime:
    return instant(ctx.clock.now_ms()) - timedelta(days=1)
