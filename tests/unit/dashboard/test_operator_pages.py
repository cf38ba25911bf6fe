"""What an operator sees of the last day: ends by reason, and the loops of the server."""

from dataclasses import replace
from pathlib import Path

from tests.fixtures.dashboard import HOUR_MS, DayClock, Furnished, furnished, pages_of
from tests.fixtures.people import ROOT, browser_of

from giornata.control.loops import LoopStatus
from giornata.control.monitoring import read_last_day
from giornata.protocol.admin import ROOT_PROJECT

OPERATOR = replace(ROOT, project_id=ROOT_PROJECT)


def text_of(house: Furnished) -> str:
    response = browser_of(house.served, house.operator).call("GET", pages_of(house)["operator-day"])
    assert response.status_code == 200
    return response.text


def test_failures_of_the_last_day_stand_there_by_reason_and_older_ones_do_not(tmp_path: Path) -> None:
    with furnished(tmp_path) as house:
        text = text_of(house)
        for reason in ("preempted", "node driver", "bad data", "bad spec"):
            assert f">{reason}</td>" in text, reason
        assert ">succeeded</td>" not in text
        ctx = house.served.ctx
        later = replace(ctx, clock=DayClock(ctx.clock.now_ms() + 25 * HOUR_MS))
        assert sum(read_last_day(ctx, OPERATOR).by_reason.values()) == 5
        assert read_last_day(later, OPERATOR).by_reason == {}


def test_a_loop_that_fails_is_named_with_its_error_and_others_are_counted(tmp_path: Path) -> None:
    with furnished(tmp_path) as house:
        assert "This server runs no loops." in text_of(house)
        well = LoopStatus(name="lapse", every_s=5, runs=10, last_success_age_s=2)
        house.served.app.state.loops_status = lambda: [well]
        assert "All 1 did their work." in text_of(house)
        ill = LoopStatus(name="reap", every_s=30, runs=4, errors=3, errors_in_a_row=3, last_error="<b>no route</b>")
        house.served.app.state.loops_status = lambda: [well, ill]
        text = text_of(house)
        assert "1 loop of 2" in text
        assert "reap: &lt;b&gt;no route" in text
