"""What a project spent, by day and by label, on its page of money and as CSV."""

import csv
import io
import re

from tests.fixtures.dashboard import CLOSING, PROJECT, SCRIPT, Furnished
from tests.fixtures.people import browser_of

from giornata.control.caller import Caller
from giornata.control.projects.read_daily_costs import read_daily_costs
from giornata.protocol.project.admin import Scope

HERE = f"/dashboard/projects/{PROJECT}/settings/money"
OWNER = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_owner")


def test_the_page_of_money_loads_its_days_and_links_the_same_numbers_as_csv(installation: Furnished) -> None:
    viewer = browser_of(installation.served, installation.viewer)
    page = viewer.call("GET", f"{HERE}?label=customer").text
    part = re.search(r'hx-get="([^"]+/money/days[^"]*)"', page)
    assert part is not None
    text = viewer.call("GET", part[1].replace("&amp;", "&")).text
    link = re.search(r'href="([^"]+days\.csv[^"]*)"', text)
    assert link is not None
    reply = viewer.call("GET", link[1].replace("&amp;", "&"))
    assert reply.headers["content-type"] == "text/csv; charset=utf-8"
    assert reply.headers["content-disposition"].startswith(f'attachment; filename="costs-{PROJECT}-')
    rows = list(csv.DictReader(io.StringIO(reply.text)))
    found = read_daily_costs(installation.served.ctx, OWNER, None, None, "customer")
    assert sum(round(float(row["cost_usd"]) * 1_000_000) for row in rows) == found.total_micro_usd > 0
    assert {row["customer"] for row in rows} == {"42", ""}
    assert ">42<" in text


def test_a_label_of_a_stranger_is_written_as_text(installation: Furnished) -> None:
    viewer = browser_of(installation.served, installation.viewer)
    assert CLOSING not in viewer.call("GET", f"{HERE}/days?label=note").text
    assert "&lt;script&gt;" in viewer.call("GET", f"{HERE}/days?label=note").text
    for wrong in (SCRIPT, CLOSING):
        reply = viewer.call("GET", f"{HERE}/days", params={"label": wrong})
        assert (reply.status_code, "It is not a name for a label" in reply.text) == (200, True)
        assert wrong not in viewer.call("GET", HERE, params={"label": wrong}).text


def test_days_and_a_label_that_are_of_no_use_are_named_beside_their_fields_and_kept(installation: Furnished) -> None:
    viewer = browser_of(installation.served, installation.viewer)
    page = viewer.call("GET", HERE, params={"since": SCRIPT, "until": "2026-02-30"}).text
    assert 'id="since-fault"' in page
    assert 'id="until-fault"' in page
    assert "Type a day" in viewer.call("GET", f"{HERE}/days", params={"since": "x"}).text
    assert "after until" in viewer.call("GET", f"{HERE}/days?since=2026-02-02&until=2026-02-01").text
    assert viewer.call("GET", f"{HERE}/days.csv?since=x").status_code == 404
    asked = {"since": "2026-02-02", "until": "2026-02-01", "label": "a b"}
    reply = viewer.call("GET", HERE, params=asked)
    assert reply.status_code == 400
    for field, typed in asked.items():
        assert re.search(rf'name="{field}" [^>]*value="{typed}"', reply.text), field
    assert re.findall(r'class="fault" id="(\w+)-fault"', reply.text) == ["since", "label"]


def test_costs_of_another_project_are_not_shown(installation: Furnished) -> None:
    stranger = browser_of(installation.served, installation.stranger)
    for path in ("", "/days", "/days.csv"):
        assert stranger.call("GET", HERE + path).status_code == 404
