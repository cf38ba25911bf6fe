"""`giornata grid`: the order, the cells with their pictures, the sheet, and the cells that are drawn again."""

import csv
import io
import json
import threading
from pathlib import Path

import pytest
from PIL import Image
from tests.fixtures.drawn_orders import DrawingNode

from giornata.cli.generation.grid_options import GridOptions, check_grid
from giornata.cli.generation.grid_sheet import MOST_ROWS, sheet_plans
from giornata.cli.jobs.options.order_options import OrderOptions, OrderTerms
from giornata.diffusion.sampling.grid_sheet import draw_sheet
from giornata.domain.errors import InvalidInput
from giornata.domain.generation.picture import PictureState
from giornata.protocol.generation.drawn_grid import DrawnCell, DrawnGrid, cells_of, named_cells
from giornata.protocol.generation.grid import GridSpec, grid_cells
from giornata.protocol.jobs import Job

ASKED = ("grid", "a {who} in {where}", "--model", "some/model", "--size", "64x64", "--seed", "5")
AXES = ("--axis", "who=fox,hare", "--axis", "where=[1, 2]")


def png(seed):
    """A picture whose color tells its seed."""
    written = io.BytesIO()
    Image.new("RGB", (64, 48), (40 * seed % 256, 90, 160)).save(written, "PNG")
    return written.getvalue()


def draw_all(served, fails):
    """Draw in this thread until something was there to draw; pictures for which `fails` holds cannot be drawn."""
    node, seen = DrawingNode(served=served, file_of=png), 0
    while not seen or node.lease:
        pictures = node.claim()
        seen += len(pictures)
        if not pictures:
            continue
        if good := [each for each in pictures if not fails(each)]:
            node.draw(good)
        for each in filter(fails, pictures):
            node.fail(each, reason="bad_spec", message="cannot be drawn")
        node.complete()


@pytest.fixture
def drawing(served):
    def start(fails=lambda _: False):
        thread = threading.Thread(target=draw_all, args=(served, fails), daemon=True)
        thread.start()
        return thread

    return start


def is_fox_in_2(picture):
    return picture["params"]["prompt"] == "a fox in 2"


def test_grid_has_a_sheet_a_table_and_a_picture_of_each_cell(run, drawing, tmp_path):
    node, folder = drawing(), tmp_path / "out"
    done = run(*ASKED, *AXES, "-n", "2", "-o", str(folder), "--json")
    node.join()
    assert done.status == 0, done.errors
    rows = list(csv.DictReader((folder / "grid.csv").open()))
    assert [(row["who"], row["where"], row["repeat"], row["seed"]) for row in rows] == [
        (who, where, repeat, str(5 + int(repeat))) for who in ("fox", "hare") for where in "12" for repeat in "01"
    ]
    assert all((folder / row["file"]).read_bytes() == png(int(row["seed"])) for row in rows)
    told = json.loads((folder / "grid.json").read_text())
    assert [cell["labels"] for cell in told["cells"]][::2] == [
        ["fox", "1"],
        ["fox", "2"],
        ["hare", "1"],
        ["hare", "2"],
    ]
    with Image.open(folder / "grid.png") as sheet:
        colors = {color for _, color in sheet.getcolors(sheet.width * sheet.height)}
    assert {(200, 90, 160), (240, 90, 160)} <= colors
    assert done.json["grid"] == told["grid"] and len(done.json["files"]) == 3


def test_failed_cells_are_told_and_ordered_again_as_they_were(run, served, drawing, tmp_path):
    node, folder = drawing(is_fox_in_2), tmp_path / "out"
    first = run(*ASKED, *AXES, "-n", "2", "-o", str(folder))
    node.join()
    assert first.status == 1 and "8 cells: 2 failed, 6 succeeded" in first.output
    job = json.loads((folder / "grid.json").read_text())["grid"]
    assert f"grid --retry {job}" in " ".join(first.output.split())
    before = (folder / "grid.png").read_bytes()
    node = drawing(lambda picture: picture["params"]["seed"] == 6)
    run("grid", "--retry", job, "-o", str(folder))
    node.join()
    node = drawing()
    again = run("grid", "--retry", job, "-o", str(folder), "--json")
    node.join()
    assert again.status == 0, again.errors
    rows = list(csv.DictReader((folder / "grid.csv").open()))
    assert [(row["state"], row["prompt"]) for row in rows[2:4]] == [("succeeded", "a fox in 2")] * 2
    assert [(folder / row["file"]).read_bytes() for row in rows] == [png(5), png(6)] * 4
    assert (folder / "grid.png").read_bytes() != before
    orders = list(served.client(served.keys.admin).jobs(labels={"retries-grid": job}))
    assert [order.total_steps for order in orders] == [1, 2]
    assert "every cell" in run("grid", "--retry", job).output


def test_one_cell_is_ordered_again_and_one_that_has_its_picture_is_refused(run, served, drawing, tmp_path):
    node = drawing(is_fox_in_2)
    job = run(*ASKED, *AXES, "-n", "2", "--json").json["grid"]
    node.join()
    refused = run("grid", "--retry", job, "--cell", "0", "--cell", "3")
    assert refused.status == 2 and "0 has not failed" in refused.errors
    assert "--retry JOB" in run("grid", "--show", job, "--cell", "3").errors
    node = drawing()
    run("grid", "--retry", job, "--cell", "3", "-o", str(tmp_path))
    node.join()
    rows = list(csv.DictReader((tmp_path / "grid.csv").open()))
    assert [row["state"] for row in rows[2:4]] == ["failed", "succeeded"]
    assert (tmp_path / rows[3]["file"]).read_bytes() == png(6)
    (order,) = served.client(served.keys.admin).jobs(labels={"retries-grid": job})
    assert (order.labels["retries-cells"], order.total_steps) == ("3", 1)


@pytest.mark.parametrize("numbers", [[7], [3, 17, 18, 19, 40], list(range(9999))])
def test_numbers_of_cells_are_read_as_they_were_written(numbers):
    assert list(cells_of(named_cells(numbers))) == numbers


def test_label_names_the_first_cells_that_it_can_hold_and_a_strange_one_names_none():
    text = named_cells(range(0, 9999, 2))
    assert len(text) <= 256 and text.startswith("0,2,4,")
    assert list(cells_of(text)) == list(range(0, 9999, 2))[: len(cells_of(text))]
    for strange in ("", "a", "1-", "-3", "1;2", "0-99999,0-99999", "123456"):
        assert cells_of(strange) == ()


def test_grid_that_is_still_drawn_is_not_retried_and_another_job_is_no_grid(run):
    job = run(*ASKED, *AXES, "--no-wait", "--json").json["id"]
    done = run("grid", "--retry", job)
    assert done.status == 2 and "may still draw them" in done.errors
    other = run("generate", "a fox", "--model", "some/model", "--size", "64x64", "--no-wait", "--json").json["id"]
    assert "no grid" in run("grid", "--retry", other).errors


@pytest.mark.parametrize("ending", ["toml", "json", "yaml"])
def test_file_has_any_field_and_options_go_before_it(tmp_path, ending):
    texts = {
        "toml": 'prompt = "a {who}"\nmodel = "m"\nguidance_scale = 3\nseed = 1\n'
        '[[axes]]\nslot = "who"\nvalues = ["fox"]\nlabel = "animal"\n',
        "json": '{"prompt": "a {who}", "model": "m", "guidance_scale": 3, "seed": 1,'
        ' "axes": [{"slot": "who", "values": ["fox"], "label": "animal"}]}',
        "yaml": 'prompt: "a {who}"\nmodel: m\nguidance_scale: 3\nseed: 1\n'
        "axes: [{slot: who, values: [fox], label: animal}]\n",
    }
    file = tmp_path / f"grid.{ending}"
    file.write_text(texts[ending])
    asked = GridOptions(pictures=OrderOptions(prompts=(), seed=9), file=file)
    found = check_grid(asked, OrderTerms()).spec
    axis = {"slot": "who", "values": ["fox"], "label": "animal"}
    assert found == {"prompt": "a {who}", "model": "m", "guidance_scale": 3, "seed": 9, "axes": [axis]}


def test_options_of_pictures_are_fields_of_the_spec(run, served):
    asked = ("grid", "a {who}", "--model", "some/model", "--axis", "who=fox,hare", "--no-wait")
    done = run(*asked, "--guidance", "4.5", "--scheduler", "Euler a", "--steps", "9", "--negative", "x")
    assert done.status == 0, done.errors
    (job,) = served.client(served.keys.admin).jobs(include=["spec"])
    fields = ("guidance_scale", "scheduler", "num_inference_steps", "negative_prompt")
    assert [job.spec[field] for field in fields] == [4.5, "euler_ancestral", 9, "x"]


def test_axes_are_slots_or_fields_and_values_lists_or_lines_of_a_file(tmp_path):
    (tmp_path / "jobs.txt").write_text("doctor\n\nnurse, at night\n")
    axes = (f"who=@{tmp_path / 'jobs.txt'}", "guidance_scale=4,7.5", 'scheduler=["euler", "ddim"]')
    asked = GridOptions(pictures=OrderOptions(prompts=("a {who}",), model="m"), axes=axes)
    assert check_grid(asked, OrderTerms()).spec["axes"] == [
        {"slot": "who", "values": ["doctor", "nurse, at night"]},
        {"field": "guidance_scale", "values": [4, 7.5]},
        {"field": "scheduler", "values": ["euler", "ddim"]},
    ]


def test_all_faults_come_at_once_and_name_the_options(tmp_path):
    options = OrderOptions(prompts=("a {who} (",), model="m", size="65x64")
    axes = ("who=fox", "sede=1,2", "nothing")
    with pytest.raises(InvalidInput) as refused:
        check_grid(GridOptions(pictures=options, axes=axes), OrderTerms(max_cost="much"))
    assert {fault.where for fault in refused.value.faults} == {"PROMPT", "--size", "--axis", "--axis 2", "--max-cost"}
    with pytest.raises(InvalidInput) as refused:
        check_grid(GridOptions(pictures=OrderOptions(prompts=()), file=tmp_path / "none.toml"), OrderTerms())
    assert [fault.where for fault in refused.value.faults] == ["--file"]


def test_options_of_a_new_grid_do_not_go_with_an_earlier_one(run):
    done = run("grid", "a {who}", "--axis", "who=fox", "--seed", "1", "--guidance", "4", "--retry", "JOB")
    assert done.status == 2 and all(word in done.errors for word in ("PROMPT", "--axis", "--seed", "--guidance"))


def test_sheet_shows_the_state_of_a_cell_without_a_picture_and_a_broken_file(tmp_path):
    (tmp_path / "fox.png").write_bytes(png(3))
    (tmp_path / "broken.png").write_bytes(b"no picture")
    plan = {"title": "grid", "subtitle": "", "groups": [{"heading": "", "captions": ["", "", ""]}]}
    cells = [{"file": str(tmp_path / "fox.png")}, {"state": "failed"}, {"file": str(tmp_path / "broken.png")}]
    drawn = [draw_sheet(plan | {"rows": [{"label": "a", "text": "b", "pictures": [cells[:n]]}]}) for n in (1, 2, 3)]
    assert len({sheet.tobytes() for sheet in drawn}) == 3 and len({sheet.size for sheet in drawn}) == 1
    assert (120, 90, 160) in {color for _, color in drawn[0].getcolors(10**6)}


def drawn_grid(spec):
    """A grid whose pictures are all drawn, without a server."""
    cells = [
        DrawnCell(
            number=cell.number,
            places=cell.places,
            repeat=cell.repeat,
            labels=cell.labels,
            seed=5 + cell.repeat,
            prompt="a",
            state=PictureState.SUCCEEDED,
            blocked=False,
            error=None,
            order="job_1",
            picture=cell.number,
            file=f"{cell.number}.png",
        )
        for cell in grid_cells(spec)
    ]
    return DrawnGrid(job=Job.model_construct(id="job_1", name="foxes"), retries=(), spec=spec, cells=tuple(cells))


def test_large_grid_has_several_sheets_of_the_first_repeats():
    axes = [{"slot": "n", "values": list(range(60))}, {"field": "guidance_scale", "values": [4, 7]}]
    spec = GridSpec.model_validate({"prompt": "{n}", "model": "m", "axes": axes, "num_images_per_prompt": 9})
    first, second = sheet_plans(drawn_grid(spec), lambda cell: Path(f"/{cell.file}"))
    assert (len(first["rows"]), len(second["rows"])) == (MOST_ROWS, 60 - MOST_ROWS)
    assert first["groups"][1] == {
        "heading": "guidance_scale: 7",
        "captions": ["seed 5", "seed 6", "seed 7", "seed 8"],
    }
    last = second["rows"][-1]
    assert last["label"] == "59" and last["pictures"][1][0]["file"] == f"/{(59 * 2 + 1) * 9}.png"
    assert "the first 4 of 9 repeats" in first["subtitle"]


def test_rows_of_more_axes_name_the_values_of_each():
    axes = [{"slot": name, "values": ["a", "b"]} for name in "xyz"]
    spec = GridSpec.model_validate({"prompt": "{x} {y} {z}", "model": "m", "axes": axes})
    (plan,) = sheet_plans(drawn_grid(spec), lambda cell: None)
    assert [(row["label"], row["text"]) for row in plan["rows"]][1:3] == [("a", "x, y: b"), ("b", "x, y: a")]
    assert plan["rows"][0]["pictures"] == [[{"state": "succeeded"}]] * 2


def test_grid_waits_for_nodes_that_draw_pictures(run, served):
    job = run(*ASKED, *AXES, "--no-wait", "--json").json["id"]
    why = run("job", job, "--json").json["waiting_because"]
    assert "kind generate" in why
