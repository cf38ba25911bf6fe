"""Grids on the page Generate: axes, the labeled sheet, its files, and cells that are drawn again."""

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from tests.fixtures.dashboard import OTHER, PROJECT, SCRIPT, Furnished, furnished, picture
from tests.fixtures.people import Browser, browser_of
from tests.fixtures.picture_rig import PictureRig
from tests.fixtures.store_rig import StoreRig

from giornata.control.caller import Caller
from giornata.control.jobs.grid_cells import draw_cells_again, read_grid
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.stop_job import cancel
from giornata.control.pictures.settle_order import settle_orders
from giornata.dashboard.picture_pages.grid_pages import MOST_CELLS
from giornata.domain.errors import InvalidInput
from giornata.protocol.project.admin import Scope

HERE = f"/dashboard/projects/{PROJECT}"
ANN = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_ann")
FORM = {"prompts": "a {who}, {how}", "model": "some/model", "width": "64", "height": "64", "seed": "5"}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Furnished]:
    with furnished(tmp_path_factory.mktemp("grids")) as made:
        yield made


def member(installation: Furnished) -> Browser:
    return browser_of(installation.served, installation.member)


def post(installation: Furnished, path: str, fields: dict[str, str], person: str = "member") -> httpx.Response:
    browser = browser_of(installation.served, getattr(installation, person))
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    content = urlencode({"csrf": browser.csrf_token, **fields})
    return browser.call("POST", HERE + path, content=content, headers=headers)


def placed(reply: httpx.Response) -> str:
    assert reply.status_code == 303, reply.text
    found = re.search(r"grid=(job_\w+)", reply.headers["location"])
    assert found is not None, reply.headers["location"]
    return found[1]


def spec_of(installation: Furnished, job_id: str) -> dict[str, Any]:
    return get_job(installation.served.ctx, ANN, job_id).spec


def test_axes_of_the_form_become_a_grid_and_come_back_into_the_form(installation: Furnished) -> None:
    axes = {"axis_1": "{who}", "values_1": '["fox, red", "hare"]', "axis_2": "how", "values_2": "inked, painted"}
    axes |= {
        "axis_4": "guidance_scale",
        "values_4": "4, 7.5",
        "axis_5": "negative_prompt",
        "values_5": "blurry, dark",
    }
    grid_id = placed(post(installation, "/generate", {**FORM, **axes}))
    spec = spec_of(installation, grid_id)
    said = [(axis["slot"] or axis["field"], list(axis["values"])) for axis in spec["axes"]]
    assert said == [
        ("who", ["fox, red", "hare"]),
        ("how", ["inked", "painted"]),
        ("guidance_scale", [4, 7.5]),
        ("negative_prompt", ["blurry", "dark"]),
    ]
    form = member(installation).call("GET", f"{HERE}/generate?like={grid_id}").text
    for value in (
        "a {who}, {how}</textarea>",
        "fox, red",
        'value="inked, painted"',
        'value="4, 7.5"',
        'value="blurry, dark"',
    ):
        assert value in form, value
    cancel(installation.served.ctx, ANN, grid_id)


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"axis_2": "sede", "values_2": "1"}, "axis_2", "is no setting of a picture"),
        ({"axis_2": "seed"}, "values_2", "Type values"),
        ({"values_3": "1,2"}, "axis_3", "Name a slot"),
        ({"axis_1": "who", "values_1": "[1, "}, "values_1", "is no list in JSON"),
        ({"axis_1": "loras.0.weight", "values_1": "0.5"}, "axis_1", "loras number 0"),
        ({"axis_1": "width", "values_1": "63, 64"}, "values_1", "multiple of 8; it is 63"),
        ({"axis_1": "who", "values_1": "fox", "prompts": "a {who}\na hare"}, "prompts", "one prompt"),
    ],
)
def test_fault_of_an_axis_stands_beside_its_field_and_the_form_keeps_what_was_typed(
    installation: Furnished, given: dict[str, str], field: str, said: str
) -> None:
    reply = post(installation, "/generate", {**FORM, **given})
    assert reply.status_code == 400
    found = re.search(rf'id="{field}-fault">([^<]*)', reply.text)
    assert found is not None, re.findall(r'class="fault"[^>]*>[^<]*|<li>.*?</li>', reply.text)
    assert said in found[1]
    assert '<details class="axes" open>' in reply.text
    for value in (each for name, each in given.items() if name != "prompts" and "[" not in each):
        assert f'value="{value}"' in reply.text


def test_faults_of_the_form_stand_there_together_with_those_of_the_spec(installation: Furnished) -> None:
    given = {"width": "wide", "num_images_per_prompt": "0", "lora": "fox:strong"}
    rows = {"axis_1": "who", "values_1": "", "axis_2": "sede", "values_2": "1", "axis_4": "how", "values_4": "ink"}
    text = post(installation, "/generate", {**FORM, **given, **rows}).text
    beside = dict(re.findall(r'id="(\w+)-fault">([^<]*)', text))
    assert set(beside) == {"width", "num_images_per_prompt", "lora", "values_1", "axis_2"}
    assert "is no setting of a picture" in beside["axis_2"]
    assert "greater than or equal to 1; it is 0" in beside["num_images_per_prompt"]


def test_sheet_has_labels_pictures_and_the_cell_that_failed(installation: Furnished) -> None:
    text = member(installation).call("GET", f"{HERE}/grids/{installation.grid_job}").text
    assert text.count("<img ") == 5
    assert re.findall(r'<th scope="col">([^<]*)', text) == ["who", "guidance_scale: 4", "guidance_scale: 7.5"]
    assert SCRIPT not in text
    assert "&lt;img src=x" in text
    assert '<button class="button quiet" name="cell" value="5">' in text
    page = member(installation).call("GET", f"{HERE}/generate?grid={installation.grid_job}").text
    assert f'hx-get="{HERE}/grids/{installation.grid_job}"' in page
    settings = member(installation).call("GET", f"{HERE}/generate?like={installation.grid_job}&number=3").text
    for value in ("a red fox, watercolor</textarea>", 'name="guidance_scale" type="text" value="7.5"', 'value="7"'):
        assert value in settings, value


def test_cells_are_sent_as_csv_and_json(installation: Furnished) -> None:
    browser = member(installation)
    table = browser.call("GET", f"{HERE}/grids/{installation.grid_job}/cells.csv")
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [(row["guidance_scale"], row["state"]) for row in rows[2:6]] == [
        ("4", "succeeded"),
        ("7.5", "succeeded"),
        ("4", "succeeded"),
        ("7.5", "failed"),
    ]
    told = browser.call("GET", f"{HERE}/grids/{installation.grid_job}/cells.json").json()
    assert (told["grid"], len(told["cells"]), told["axes"][1]["title"]) == (
        installation.grid_job,
        6,
        "guidance_scale",
    )
    assert "attachment" in table.headers["content-disposition"]


def test_other_people_neither_see_the_grid_nor_draw_its_cells(installation: Furnished) -> None:
    stranger = browser_of(installation.served, installation.stranger)
    for path in ("", "/cells.csv", "/cells.json"):
        assert stranger.call("GET", f"{HERE}/grids/{installation.grid_job}{path}").status_code == 404
        own = f"/dashboard/projects/{OTHER}/grids"
        assert stranger.call("GET", f"{own}/{installation.grid_job}{path}").status_code == 404
        assert stranger.call("GET", f"{own}/job_none{path}").status_code == 404
    viewer = browser_of(installation.served, installation.viewer)
    assert "Draw again" not in viewer.call("GET", f"{HERE}/grids/{installation.grid_job}").text
    assert post(installation, f"/grids/{installation.grid_job}/retry", {"cell": "5"}, "viewer").status_code == 404
    assert post(installation, f"/grids/{installation.done_job}/retry", {}).status_code == 404


def test_one_cell_is_drawn_again_in_its_place_with_its_seed(installation: Furnished) -> None:
    ctx = installation.served.ctx
    path = f"/grids/{installation.grid_job}/retry"
    assert "said=cells-refused" in post(installation, path, {"cell": "0"}).headers["location"]
    assert "said=cells-ordered" in post(installation, path, {"cell": "5"}).headers["location"]
    assert ">queued</span>" in member(installation).call("GET", f"{HERE}/grids/{installation.grid_job}").text
    assert "said=cells-refused" in post(installation, path, {}).headers["location"], "it is being drawn"
    rig = PictureRig(StoreRig(ctx, ctx.store, ctx.clock))  # type: ignore[arg-type]
    lease = rig.lease(node=6, request_id="draws-one-cell")
    (wanted,) = lease.pictures
    assert (wanted.params["prompt"], wanted.params["seed"]) == ("a hare, watercolor", 7)
    rig.report(lease, [rig.upload(lease, wanted, picture(55))], complete=True)
    settle_orders(ctx)
    grid = read_grid(ctx, ANN, installation.grid_job)
    assert (grid.not_drawn, grid.active) == ((), ())
    assert [cell.order == installation.grid_job for cell in grid.cells] == [True] * 5 + [False]
    assert member(installation).call("GET", f"{HERE}/grids/{installation.grid_job}").text.count("<img ") == 6


def test_large_grid_is_shown_in_parts_and_its_failed_cells_are_drawn_again_together(installation: Furnished) -> None:
    ctx = installation.served.ctx
    axes = {"axis_1": "who", "values_1": json.dumps([f"fox {n}" for n in range(40)])}
    axes |= {"axis_2": "seed", "values_2": "1,2,3,4,5,6,7"}
    grid_id = placed(post(installation, "/generate", {**FORM, "prompts": "a {who}", **axes}))
    cancel(ctx, ANN, grid_id)
    settle_orders(ctx)
    shown = MOST_CELLS // 7
    for row, first in ((0, 0), (shown + 1, shown), (999, 39 // shown * shown)):
        text = member(installation).call("GET", f"{HERE}/grids/{grid_id}?row={row}").text
        rows = re.findall(r'<th scope="row">([^<]*)', text)
        assert rows == [f"fox {n}" for n in range(first, min(first + shown, 40))]
        assert text.count('"tile">canceled</span>') == 7 * len(rows)
    again = draw_cells_again(ctx, ANN, grid_id)
    assert again.total_steps == 280
    assert len(read_grid(ctx, ANN, grid_id).active) == 1
    with pytest.raises(InvalidInput):
        draw_cells_again(ctx, ANN, grid_id, [279])
    cancel(ctx, ANN, again.id)
