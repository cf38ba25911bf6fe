"""New training and Compare: who sees them, what a person types stays, and what a tenant names is never run."""

import html
import io
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import sqlalchemy as sa
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tests.fixtures.dashboard import CLOSING, OTHER, PROJECT, SCRIPT, Furnished, furnished
from tests.fixtures.people import Browser, browser_of
from tests.fixtures.picture_rig import PictureRig, generate_spec
from tests.fixtures.served import Served
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import have, new_dataset, train

from giornata.control.caller import Caller
from giornata.control.jobs.submission.submit import submit
from giornata.control.jobs.submission.submit_sweep import submit_sweep
from giornata.control.pictures.settle_order import settle_orders
from giornata.control.ports.model_registry import ModelRecord
from giornata.control.storage.datasets import create_dataset
from giornata.dashboard.app import POLICY
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.project.admin import Scope
from giornata.protocol.sweeps import SubmitSweep
from giornata.protocol.uploads import CreateDataset, DatasetItem

HERE = f"/dashboard/projects/{PROJECT}"
ANN = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_ann")
MOST_STATEMENTS = 8
DRAWN = b"\x89PNG\r\n\x1a\n was drawn"
PICTURE = b"\x89PNG\r\n\x1a\n and so on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Studio:
    """A furnished house with a sweep whose values are scripts, and an uploaded picture."""

    installation: Furnished
    sweep_id: str
    sha256: str
    order_id: str

    @property
    def pages(self) -> dict[str, str]:
        """The pages that a viewer may see."""
        jobs = urlencode([("job", self.installation.done_job), ("job", self.installation.hostile_job)])
        return {
            "choice": f"{HERE}/compare",
            "sweeps": f"{HERE}/compare?kind=sweep",
            "compare": f"{HERE}/compare?{jobs}",
            "sweep": f"{HERE}/compare/{self.sweep_id}",
            "gallery": f"{HERE}/gallery",
            "order": f"{HERE}/orders/{self.order_id}",
        }

    def browser(self, person: str) -> Browser:
        return browser_of(self.installation.served, getattr(self.installation, person))

    def post(self, person: str, path: str, fields: list[tuple[str, str]]) -> httpx.Response:
        browser = self.browser(person)
        content = urlencode([("csrf", browser.csrf_token), *fields])
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return browser.call("POST", HERE + path, content=content, headers=headers)


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    with furnished(tmp_path_factory.mktemp("studio")) as installation:
        ctx = installation.served.ctx
        spec = {"model": "some/model", "dataset": new_dataset(ctx, ANN).id, "max_train_steps": 10}
        grid = {"instance_prompt": (SCRIPT, CLOSING), "rank": (4, 8)}
        sweep_id, _ = submit_sweep(ctx, ANN, SubmitSweep(spec=spec, grid=grid, name=SCRIPT), None)
        yield Studio(
            installation=installation,
            sweep_id=sweep_id,
            sha256=have(ctx, ANN, PICTURE),
            order_id=drawn_order(installation.served),
        )


def drawn_order(served: Served) -> str:
    """An order whose prompt is a script: one picture is drawn, another failed."""
    rig = PictureRig(StoreRig(served.ctx, served.ctx.store, served.ctx.clock))  # type: ignore[arg-type]
    spec = {
        **generate_spec(2),
        "prompts": [SCRIPT],
        "negative_prompt": CLOSING,
        "loras": [{"name": "l", "weight": 0.5}],
    }
    order_id = rig.order(spec=spec, project_id=PROJECT, name=CLOSING[:100])
    lease = rig.lease()
    drawn, failing = lease.pictures
    done = [rig.upload(lease, drawn, DRAWN)]
    rig.report(lease, done, [(failing, Reason.BAD_SPEC)], complete=True)
    settle_orders(served.ctx)
    return order_id


@pytest.mark.parametrize("person", ["operator", "owner", "member", "viewer", "stranger"])
def test_a_person_sees_these_pages_by_the_own_role(studio: Studio, person: str) -> None:
    browser = studio.browser(person)
    for name, path in studio.pages.items():
        assert browser.call("GET", path).status_code == (404 if person == "stranger" else 200), name
    writes = person in {"operator", "owner", "member"}
    assert browser.call("GET", f"{HERE}/generate").status_code == (200 if writes else 404)
    picture = browser.call("GET", f"{HERE}/orders/{studio.order_id}/pictures/0")
    assert picture.status_code == (404 if person == "stranger" else 200)
    assert person == "stranger" or (picture.headers["content-type"], picture.content) == ("image/png", DRAWN)
    assert browser.call("GET", f"{HERE}/train").status_code == (200 if writes else 404)
    assert browser.call("GET", f"{HERE}/uploaded/{studio.sha256}").status_code == (200 if writes else 404)
    for action in ("/train", "/train/pictures", "/train/estimate", "/generate"):
        assert (studio.post(person, action, []).status_code == 404) == (not writes), action


def test_another_project_gets_neither_pictures_nor_jobs_nor_sweeps(studio: Studio) -> None:
    stranger = studio.browser("stranger")
    for path in (
        f"/compare/{studio.sweep_id}",
        f"/compare?job={studio.installation.done_job}",
        f"/uploaded/{studio.sha256}",
        f"/orders/{studio.order_id}",
        f"/orders/{studio.order_id}/pictures/0",
        f"/generate?like={studio.order_id}&number=0",
        f"/generate?file={studio.sha256}",
    ):
        assert stranger.call("GET", f"/dashboard/projects/{OTHER}{path}").status_code == 404, path
    choice = stranger.call("GET", f"/dashboard/projects/{OTHER}/compare").text
    assert studio.sweep_id not in choice
    assert studio.installation.done_job not in choice


def test_the_field_of_the_base_model_offers_registered_bases_and_no_other_models(studio: Studio) -> None:
    row = {"project_id": PROJECT, "sha256": None, "size_bytes": 1, "source": "hub", "reference": "some/base"}
    row |= {"family": "sdxl", "pinned": False, "shared": False, "created_at_ms": 1, "used_at_ms": 1}
    with studio.installation.served.ctx.store.begin() as tx:
        for name, kind in (("our <base>", "base"), ("our-vae", "vae")):
            assert tx.models.add(ModelRecord(name=name, kind=kind, **row))
    for form in ("generate", "train"):
        text = studio.browser("member").call("GET", f"{HERE}/{form}").text
        offered = re.findall(r'<datalist id="bases">(.*?)</datalist>', text)[0]
        assert '<option value="our &lt;base&gt;">' in offered
        assert "our-vae" not in offered
        assert re.search(r'name="model"[^>]* list="bases"', text)


def test_no_text_of_a_tenant_becomes_markup(studio: Studio) -> None:
    browser, pictures = studio.browser("owner"), json.dumps([{"sha256": studio.sha256, "name": SCRIPT}])
    fields = [
        ("added", pictures),
        ("name", CLOSING),
        ("instance_prompt", SCRIPT),
        ("steps", CLOSING),
        ("more", SCRIPT),
    ]
    texts = {name: browser.call("GET", path).text for name, path in studio.pages.items()}
    texts["train"] = studio.post("owner", "/train", fields).text
    texts["pictures"] = studio.post("owner", "/train/pictures", fields).text
    texts["estimate"] = studio.post("owner", "/train/estimate", fields).text
    texts["like"] = browser.call("GET", f"{HERE}/generate?like={studio.order_id}&number=0").text
    ordered = [("prompts", SCRIPT), ("model", CLOSING), ("lora", SCRIPT), ("width", CLOSING), ("seed", SCRIPT)]
    texts["generate"] = studio.post("owner", "/generate", ordered).text
    for name, text in texts.items():
        assert SCRIPT not in text, name
        assert "<script>document" not in text, name
    assert "&lt;img src=x" in texts["sweep"]
    assert "&lt;img src=x" in texts["pictures"]
    assert "&lt;img src=x" in texts["like"]
    assert "&lt;img src=x" in texts["generate"]


def test_each_of_these_pages_has_the_policy_and_no_inline_script_or_style(studio: Studio) -> None:
    browser = studio.browser("owner")
    for name, path in {**studio.pages, "train": f"{HERE}/train", "generate": f"{HERE}/generate"}.items():
        response = browser.call("GET", path)
        assert response.headers["content-security-policy"] == POLICY, name
        assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=", response.text), name


def test_a_page_costs_at_most_8_statements(studio: Studio) -> None:
    browser = studio.browser("owner")
    for name, path in {**studio.pages, "train": f"{HERE}/train", "generate": f"{HERE}/generate"}.items():
        # The caller is remembered for seconds: the fewest of three visits are those of the page itself.
        statements = min((_statements_of(browser, path) for _ in range(3)), key=len)
        assert len(statements) <= MOST_STATEMENTS, (name, statements)


def _statements_of(browser: Browser, path: str) -> list[str]:
    seen: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        browser.call("GET", path)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    return [each for each in seen if not each.startswith("BEGIN")]


def test_every_fault_stands_beside_its_field_and_what_was_typed_stays(studio: Studio) -> None:
    typed = [
        ("name", "my dog"),
        ("preset", "subject"),
        ("steps", "many"),
        ("budget", "-1"),
        ("instance_prompt", "sks"),
        ("more", '{"rank": "thick", "nonsense": 1}'),
    ]
    added = json.dumps([{"sha256": studio.sha256, "name": "a.png"}, {"sha256": "0" * 64, "name": "lost.png"}])
    refused = studio.post("owner", "/train", [*typed, ("added", added)])
    assert refused.status_code == 400
    for field in ("steps", "budget", "model"):
        assert f'id="{field}-fault"' in refused.text, field
    beside = re.findall(r'id="more-fault"[^>]*>(.*?)<', refused.text, re.DOTALL)
    assert [each.partition(":")[0] for each in beside[0].split(". ")] == ["rank", "nonsense"]
    assert "cannot be trained as it is" not in refused.text, "each fault has its field"
    assert 'value="my dog"' in refused.text
    assert 'value="many"' in refused.text
    assert re.search(r'id="fault-2">.*\n?', refused.text), "the picture that is not there is named at the picture"


def test_a_form_with_pictures_becomes_a_job_and_sending_it_twice_makes_one(studio: Studio) -> None:
    ctx = studio.installation.served.ctx
    pictures = [have(ctx, ANN, PICTURE + bytes([number])) for number in range(5)]
    fields = [
        ("name", "from a page"),
        ("model", "some/model"),
        ("steps", "12"),
        ("budget", "1.50"),
        ("key", "form_1"),
    ]
    for number, sha256 in enumerate(pictures):
        fields += [("picture", sha256), ("picture_name", f"{number}.png"), ("caption", f"a dog {number}")]
    estimated = studio.post("owner", "/train/estimate", fields)
    assert "Place in the queue" in estimated.text, estimated.text
    first, second = (studio.post("owner", "/train", fields) for _ in range(2))
    assert first.status_code == 303
    assert first.headers["location"] == second.headers["location"]
    job_id = first.headers["location"].rpartition("/")[2].partition("?")[0]
    job = studio.browser("owner").call("GET", f"/v1/jobs/{job_id}", headers={"X-Project": PROJECT}).json()
    assert (job["name"], job["total_steps"], job["budget_micro_usd"]) == ("from a page", 12, 1_500_000)


def form_of(text: str) -> list[tuple[str, str]]:
    """The fields of the form as a browser would send them."""
    found = [
        (name, html.unescape(value))
        for name, value in re.findall(r'<input [^>]*name="(\w+)"[^>]*value="([^"]*)"', text)
    ]
    areas = re.findall(r'<textarea [^>]*name="(\w+)"[^>]*>(.*?)</textarea>', text, re.DOTALL)
    return [pair for pair in found if pair[0] != "csrf"] + [(name, html.unescape(value)) for name, value in areas]


def spec_of(studio: Studio, job_id: str) -> dict[str, Any]:
    job = studio.browser("owner").call("GET", f"/v1/jobs/{job_id}", headers={"X-Project": PROJECT}).json()
    return dict(job["spec"])


def new_job(response: httpx.Response) -> str:
    assert response.status_code == 303, response.text
    return response.headers["location"].rpartition("/")[2].partition("?")[0]


def test_a_duplicate_without_changes_has_the_same_spec_and_a_change_is_the_only_difference(studio: Studio) -> None:
    ctx = studio.installation.served.ctx
    old_dataset = new_dataset(ctx, ANN)
    request = train(old_dataset, max_train_steps=30, rank=8, alpha=16.0, instance_prompt=CLOSING)
    old, _ = submit(ctx, ANN, request.model_copy(update={"name": "a fox", "budget_micro_usd": 500_000}), None)
    fields = form_of(studio.browser("owner").call("GET", f"{HERE}/train?like={old.id}").text)
    assert ("budget", "0.50") in fields
    assert len([name for name, _ in fields if name == "picture"]) == old_dataset.picture_count
    same = spec_of(studio, new_job(studio.post("owner", "/train", fields)))
    assert same == spec_of(studio, old.id)
    changed = [(name, "31" if name == "steps" else value) for name, value in fields if name != "key"]
    other = spec_of(studio, new_job(studio.post("owner", "/train", changed)))
    assert {name for name in same if same[name] != other[name]} == {"max_train_steps"}


def test_a_dataset_that_the_form_cannot_hold_is_trained_as_it_is(studio: Studio) -> None:
    ctx = studio.installation.served.ctx
    items = [
        DatasetItem(sha256=have(ctx, ANN, PICTURE + bytes([40 + n])), name=f"{n}.png", repeats=3) for n in range(5)
    ]
    dataset = create_dataset(ctx, ANN, CreateDataset(items=tuple(items)))
    old, _ = submit(ctx, ANN, train(dataset, max_train_steps=30), None)
    page = studio.browser("owner").call("GET", f"{HERE}/train?like={old.id}").text
    assert "as they are in its dataset" in page
    assert spec_of(studio, new_job(studio.post("owner", "/train", form_of(page))))["dataset"] == dataset.id


def test_training_on_from_a_checkpoint_begins_with_its_weights(studio: Studio) -> None:
    installation, browser = studio.installation, studio.browser("owner")
    job, headers = f"/v1/jobs/{installation.done_job}", {"X-Project": PROJECT}
    checkpoint = browser.call("GET", f"{job}/checkpoints", headers=headers).json()["items"][0]
    slider = browser.call("GET", f"{HERE}/jobs/{installation.done_job}/pictures").text
    assert f"like={installation.done_job}&amp;from={checkpoint['step']}" in slider
    assert f"lora={installation.done_job}%40{checkpoint['step']}" in slider
    fields = form_of(browser.call("GET", f"{HERE}/train?like={installation.done_job}&from={checkpoint['step']}").text)
    more = json.loads(dict(fields)["more"])
    assert more["init_lora"] == checkpoint["sha256"]
    assert "seed" not in more
    for step in ("1", "x", "00"):
        assert browser.call("GET", f"{HERE}/train?like={installation.done_job}&from={step}").status_code == 404
    assert (
        studio.browser("stranger")
        .call("GET", f"/dashboard/projects/{OTHER}/train?like={installation.done_job}")
        .status_code
        == 404
    )


def test_captions_are_replaced_in_all_and_a_picture_is_removed(studio: Studio) -> None:
    ctx = studio.installation.served.ctx
    fields: list[tuple[str, str]] = [("do", "replace"), ("find", "dog"), ("put", "cat")]
    shas = [have(ctx, ANN, PICTURE + bytes([number])) for number in range(3)]
    for sha256 in shas:
        fields += [("picture", sha256), ("picture_name", f"{sha256[:4]}.png"), ("caption", "a dog, a dog")]
    text = studio.post("owner", "/train/pictures", [*fields, ("remove", shas[0])]).text
    assert text.count("a cat, a cat</textarea>") == 2
    assert shas[0] not in text
    assert "2 captions changed" in text


def test_the_settings_of_a_picture_fill_the_form(studio: Studio) -> None:
    text = studio.browser("owner").call("GET", f"{HERE}/generate?like={studio.order_id}&number=0").text
    for value in ('value="base-a"', 'value="l:0.5"', 'value="512"', 'value="10"', 'value="7"'):
        assert value in text, value


def test_the_settings_in_a_file_fill_the_form_and_a_file_without_any_is_said(studio: Studio) -> None:
    browser, ctx = studio.browser("owner"), studio.installation.served.ctx
    told = "a red fox\nNegative prompt: blurry\nSteps: 20, Sampler: Euler, Seed: 99, Size: 640x512, Model: some"
    info = PngInfo()
    info.add_text("parameters", told)
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG", pnginfo=info)
    text = browser.call("GET", f"{HERE}/generate?file={have(ctx, ANN, buffer.getvalue())}").text
    for value in ("a red fox</textarea>", 'value="blurry"', 'value="640"', 'value="99"', 'value="20"'):
        assert value in text, value
    refused = browser.call("GET", f"{HERE}/generate?file={studio.sha256}")
    assert refused.status_code == 400
    assert "says nothing about how it was made" in refused.text


def test_an_order_of_the_form_is_placed_once_and_its_faults_stand_beside_the_fields(studio: Studio) -> None:
    refused = studio.post(
        "owner", "/generate", [("prompts", "a fox"), ("width", "wide"), ("lora", "x:heavy, y:light")]
    )
    assert refused.status_code == 400
    assert 'id="width-fault"' in refused.text
    assert re.search(r'id="lora-fault".*heavy.*light', refused.text), "each fault of a field is said"
    assert 'value="wide"' in refused.text
    fields = [("prompts", "a fox\na hare"), ("model", "some/model"), ("width", "512"), ("key", "form_2")]
    first, second = (studio.post("owner", "/generate", fields) for _ in range(2))
    assert first.status_code == 303, first.text
    assert first.headers["location"] == second.headers["location"]
    shown = studio.browser("owner").call("GET", first.headers["location"])
    assert "/orders/job_" in shown.text


def test_an_order_says_why_pictures_failed_and_why_others_were_not_drawn_the_last_time(studio: Studio) -> None:
    served = studio.installation.served
    rig = PictureRig(StoreRig(served.ctx, served.ctx.store, served.ctx.clock))  # type: ignore[arg-type]
    order_id = rig.order(3, project_id=PROJECT, priority=9)
    lease = rig.lease(2, request_id="draws-of-three")
    done, failing, waiting = lease.pictures
    failed = [(failing, Reason.BAD_SPEC), (waiting, Reason.NODE_VRAM)]
    rig.report(lease, [rig.upload(lease, done, DRAWN)], failed, complete=True)
    shown = studio.browser("viewer").call("GET", f"{HERE}/orders/{order_id}").text
    assert '<p class="fault">Picture 1: it broke (bad_spec)</p>' in shown
    assert "Picture 2 was not drawn the last time: it broke (node_vram)" in shown
    head = studio.browser("viewer").call("GET", f"{HERE}/jobs/{order_id}").text
    assert "<strong>Some pictures failed</strong>, the first because: it broke (bad_spec)" in head
    assert "such as: it broke (node_vram)" in head


def test_the_gallery_finds_stars_tags_sends_and_deletes_chosen_pictures(studio: Studio) -> None:
    order_id = studio.order_id
    member, chosen = studio.browser("member"), [("picture", f"{order_id} 0")]
    shown = member.call("GET", f"{HERE}/gallery").text
    assert f'value="{order_id} 0"' in shown
    for path, fields, said in (
        ("/gallery/star", chosen, "pictures-marked"),
        ("/gallery/tag", [*chosen, ("new_tag", "Best, print")], "pictures-marked"),
        ("/gallery/tag", [*chosen, ("new_tag", "<b>")], "no-tag"),
        ("/gallery/star", [("picture", "nothing")], "no-picture-chosen"),
        ("/gallery/delete", [], "no-picture-chosen"),
        ("/gallery/star", [("picture", "job_none 0")], "pictures-refused"),
    ):
        reply = studio.post("member", path, [*fields, ("match", "fox")])
        assert reply.headers["location"].endswith(f"said={said}&match=fox#gallery"), path
    marked = member.call("GET", f"{HERE}/gallery?starred=yes&tag=best,print&match=img").text
    assert f'value="{order_id} 0"' in marked
    assert ">best</span>" in marked
    assert "No picture is like this" in member.call("GET", f"{HERE}/gallery?tag=best&match=wolf").text
    for field, day in (("since", "today"), ("until", "9999-12-31")):
        beside = member.call("GET", f"{HERE}/gallery?{field}={day}").text
        assert re.search(rf'id="gallery-{field}" hx-swap-oob="true"(?s:.)*?id="{field}-fault">[^<]*{day}', beside)
        assert beside.count('class="fault"') == 1
    both = member.call("GET", f"{HERE}/gallery?since=x&until=y").text
    assert [f'id="{name}-fault"' in both for name in ("since", "until")] == [True, True]
    searched = member.call("GET", f"{HERE}/gallery?match=fox", headers={"HX-Trigger": "gallery-search"}).text
    assert 'id="gallery-since" hx-swap-oob="true"' in searched, "a fault of the search before goes"
    assert "hx-swap-oob" not in member.call("GET", f"{HERE}/gallery?match=fox").text
    sent = studio.post("member", "/gallery/download", chosen)
    with zipfile.ZipFile(io.BytesIO(sent.content)) as archive:
        assert [archive.read(name) for name in archive.namelist()] == [DRAWN]
    for path in ("/gallery/star", "/gallery/delete"):
        assert studio.post("viewer", path, chosen).status_code == 404
    assert "formaction" not in studio.browser("viewer").call("GET", f"{HERE}/gallery").text
    assert "said=pictures-deleted" in studio.post("member", "/gallery/delete", chosen).headers["location"]
    assert f'value="{order_id} 0"' not in member.call("GET", f"{HERE}/gallery").text


def test_the_page_of_an_order_follows_its_events(studio: Studio) -> None:
    page = studio.browser("member").call("GET", f"{HERE}/generate?order={studio.order_id}").text
    assert f'data-follow="/v1/jobs/{studio.order_id}/events"' in page
