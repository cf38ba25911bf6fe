"""`giornata generate`, `pictures`, `download` and `follow` for orders of pictures."""

import hashlib
import threading
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin
from tests.fixtures.drawn_orders import DrawingNode, drawn_bytes

from giornata.cli.jobs.options.order_options import OrderOptions, OrderTerms, check_order
from giornata.protocol.generation.metadata import metadata_of
from giornata.protocol.generation.picture import PictureParams

ASKED = ("generate", "a red fox", "--model", "some/model", "--size", "64x64")


@pytest.fixture
def drawing(served):
    """A node that draws in another thread until something was there to draw."""

    def start(**how):
        def draw():
            node = DrawingNode(served=served)
            while not node.work(**how):
                pass

        thread = threading.Thread(target=draw, daemon=True)
        thread.start()
        return thread

    return start


def only_job(served):
    (job,) = served.client(served.keys.admin).jobs(include=["spec"])
    return job


def test_pictures_are_downloaded_as_they_are_done_and_named_by_order_and_number(run, drawing, served, tmp_path):
    node = drawing()
    done = run(*ASKED, "-n", "3", "--seed", "5", "--name", "foxes", "-o", str(tmp_path / "out"))
    node.join()
    assert done.status == 0, done.errors
    job = only_job(served)
    names = [f"foxes-{job.id[-6:]}-{number:04d}.png" for number in range(3)]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == names
    assert [(tmp_path / "out" / name).read_bytes() for name in names] == [drawn_bytes(seed) for seed in (5, 6, 7)]
    assert f"{job.id} succeeded: 3 pictures" in done.output


def test_options_are_fields_of_the_spec(tmp_path):
    (tmp_path / "prompts.txt").write_text("a hare\n\na fox\n")
    options = OrderOptions(
        prompts=["a bear"],
        prompts_file=tmp_path / "prompts.txt",
        model="some/model",
        loras=["job_1:0.8", "other"],
        count=2,
        size="1216x896",
        steps=20,
        guidance=5.5,
        scheduler="Euler a",
        seed=9,
        negative="rain",
        assignments=["clip_skip=2", "prompt_loras={}"],
    )
    terms = OrderTerms(name="animals", priority=3, max_cost="0.50", min_vram="12GB")
    order = check_order(options, terms)
    assert order.spec == {
        "prompts": ["a bear", "a hare", "a fox"],
        "model": {"name": "some/model"},
        "loras": [{"name": "job_1", "weight": 0.8}, {"name": "other"}],
        "num_images_per_prompt": 2,
        "width": 1216,
        "height": 896,
        "num_inference_steps": 20,
        "guidance_scale": 5.5,
        "scheduler": "Euler a",
        "seed": 9,
        "negative_prompt": "rain",
        "clip_skip": 2,
        "prompt_loras": {},
    }
    memory = 12_000_000_000
    assert order.terms == {"name": "animals", "priority": 3, "budget_micro_usd": 500_000, "min_vram_bytes": memory}


def test_order_is_placed_with_its_terms(run):
    terms = ("--name", "foxes", "--priority", "3", "--max-cost", "0.50", "--min-vram", "12GB")
    job = run(*ASKED, *terms, "-n", "2", "--no-wait", "--json").json
    found = [job[name] for name in ("name", "priority", "budget_micro_usd", "min_vram_bytes", "total_steps")]
    assert found == ["foxes", 3, 500_000, 12_000_000_000, 2]


def test_all_faults_come_at_once_and_name_the_options(run, served, tmp_path):
    done = run(
        *("generate", "a (red fox", "--size", "65x64", "--scheduler", "nope", "--lora", "", "--max-cost", "much"),
        *("--min-vram", "12", "--set", "sede=1", "--no-wait", "-o", str(tmp_path)),
    )
    assert done.status == 2
    for word in ("PROMPT", "--model", "--size", "--scheduler", "--max-cost", "--min-vram", "spec.sede", "--output"):
        assert word in done.errors, word
    assert not list(served.client(served.keys.admin).jobs())


def test_no_prompt_a_bad_size_and_a_missing_file_of_prompts_are_faults(run, tmp_path):
    assert "PROMPT: no prompt is given" in run("generate", "--model", "m").errors
    assert "--size: 'large' is not WIDTHxHEIGHT" in run("generate", "a", "--model", "m", "--size", "large").errors
    missing = run("generate", "--model", "m", "--prompts", str(tmp_path / "none.txt"))
    assert missing.status == 2 and "--prompts" in missing.errors


def test_generate_with_estimate_option_submits_no_job(run, served):
    done = run(*ASKED, "-n", "4", "--steps", "10", "--estimate")
    assert done.status == 0 and "4, 0.16 megapixel-steps" in done.output
    assert not list(served.client(served.keys.admin).jobs())


def test_order_without_waiting_is_followed_and_fetched_later(run, served, drawing, tmp_path):
    order = run(*ASKED, "-n", "2", "--no-wait", "--json").json["id"]
    assert run("download", order, "-o", str(tmp_path / "none")).status == 1
    node = drawing()
    followed = run("follow", order, "-o", str(tmp_path / "one"), "--json")
    node.join()
    assert followed.status == 0 and len(followed.json["files"]) == 2
    fetched = run("download", order, "-o", str(tmp_path / "two"), "--json")
    files = [file.rsplit("/", 1)[1] for file in followed.json["files"]]
    assert sorted(file.rsplit("/", 1)[1] for file in fetched.json["files"]) == sorted(files)


def test_blocked_and_failed_pictures_are_counted_at_the_end(run, drawing, tmp_path):
    node = drawing(blocked=(1,))
    done = run(*ASKED, "-n", "3", "-o", str(tmp_path / "out"))
    node.join()
    assert "3 pictures, 1 blocked" in done.output
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_canceled_order_ends_with_status_1(run, served):
    order = run(*ASKED, "--no-wait", "--json").json["id"]
    run("cancel", order)
    assert run("follow", order).status == 1


def test_pictures_are_listed_by_number(run, drawing):
    order = run(*ASKED, "-n", "3", "--seed", "1", "--no-wait", "--json").json["id"]
    drawing(blocked=(1,)).join()
    rows = [line.split("\t") for line in run("pictures", order).output.splitlines()]
    assert rows[0] == ["number", "state", "seed", "size", "prompt", "error"]
    assert [row[:3] for row in rows[1:]] == [
        ["0", "succeeded", "1"],
        ["1", "succeeded, blocked", "2"],
        ["2", "succeeded", "3"],
    ]
    some = run("pictures", order, "--limit", "2")
    assert (
        "there are more" in some.output and len(run("pictures", order, "--limit", "2", "--json").json["items"]) == 2
    )


def test_job_and_list_of_pictures_say_why_one_failed_and_one_waits(run, served):
    order = run(*ASKED, "-n", "3", "--no-wait", "--json").json["id"]
    node = DrawingNode(served=served)
    done, hopeless, unlucky = node.claim()
    node.draw([done])
    node.fail(hopeless, reason="bad_spec", message="no\nsuch token")
    node.fail(unlucky, reason="node_vram", message="full")
    listed = [
        (row[0], row[1], row[5])
        for line in run("pictures", order).output.splitlines()[1:]
        for row in [line.split("\t")]
    ]
    assert listed == [
        ("0", "succeeded", ""),
        ("1", "failed", "no such token (bad_spec)"),
        ("2", "queued", "full (node_vram)"),
    ]
    said = run("job", order).output
    assert "failed      no such token (bad_spec); of each picture: giornata" in said
    assert "1 of its pictures could not be drawn on 1 machine (such as: full (node_vram))" in said


def picture_file(path, text, *, name):
    """A PNG with a text in it, as other programs write it."""
    texts = PngImagePlugin.PngInfo()
    texts.add_text(name, text)
    Image.new("RGB", (8, 8)).save(path, pnginfo=texts)
    return str(path)


def test_picture_is_repeated_from_what_its_file_records_and_options_change_it(run, tmp_path):
    params = PictureParams(model={"name": "some/model"}, prompt="a (fox:1.2)", width=64, height=72, seed=7)
    texts = metadata_of(params, made_with={})
    ours = picture_file(tmp_path / "ours.png", texts["giornata"], name="giornata")
    done = run("generate", "--from-image", ours, "--steps", "9", "-n", "2", "--no-wait", "--json")
    assert done.status == 0, done.errors
    spec = done.json["spec"]
    told = [spec[name] for name in ("prompts", "seed", "height", "num_inference_steps", "num_images_per_prompt")]
    assert told == [["a (fox:1.2)"], 7, 72, 9, 2] and spec["model"]["name"] == "some/model"


def test_picture_of_a1111_is_repeated_with_notes_of_what_differs(tmp_path):
    text = "a fox\nNegative prompt: rain\nSteps: 12, Sampler: Euler a, CFG scale: 5, Seed: 3, Size: 64x72"
    file = picture_file(tmp_path / "theirs.png", text, name="parameters")
    order = check_order(OrderOptions(prompts=(), from_image=Path(file), model="m"), OrderTerms())
    told = [order.spec[name] for name in ("prompts", "negative_prompt", "num_inference_steps", "width", "seed")]
    assert told == [["a fox"], "rain", 12, 64, 3]
    assert order.notes[0].endswith("by A1111's parameters") and "on its GPU" in order.notes[1]


def test_file_without_settings_is_a_fault_of_its_option_alone(run, tmp_path):
    plain = picture_file(tmp_path / "plain.png", "a text", name="Comment")
    for file in (plain, str(tmp_path / "none.png")):
        done = run("generate", "--from-image", file, "--no-wait")
        assert done.status == 2 and done.errors.count("\n") == 2 and "--from-image" in done.errors, done.errors


def picture_of(path, side_px):
    Image.new("RGB", (side_px, side_px), "red").save(path)
    return str(path)


def test_picture_and_mask_are_uploaded_and_are_in_the_spec(run, served, tmp_path):
    image, mask = picture_of(tmp_path / "photo.png", 128), picture_of(tmp_path / "mask.png", 128)
    done = run(*ASKED, "--image", image, "--mask", mask, "--no-wait")
    assert done.status == 0, done.errors
    hashes = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in (image, mask)]
    assert [only_job(served).spec[field] for field in ("image", "mask")] == hashes


def test_mask_of_another_size_is_refused_with_the_other_faults_before_anything_is_sent(run, served, tmp_path):
    image, mask = picture_of(tmp_path / "photo.png", 128), picture_of(tmp_path / "mask.png", 64)
    done = run(*ASKED, "--image", image, "--mask", mask, "--steps", "0", "--no-wait")
    assert done.status == 2
    assert "--mask: the mask has 64×64 pixels, and its picture has 128×128" in done.errors
    assert "--steps" in done.errors
    (tmp_path / "broken.png").write_bytes(b"nothing")
    other = run(*ASKED, "--image", str(tmp_path / "broken.png"), "--mask", str(tmp_path / "none.png"))
    assert "--image: " in other.errors and "none.png is no file" in other.errors
    assert "--mask: has no effect without image" in run(*ASKED, "--mask", mask).errors
    assert not list(served.client(served.keys.admin).jobs())


def test_pictures_of_all_orders_are_found_starred_saved_and_deleted(run, drawing, tmp_path):
    order = run(*ASKED, "-n", "3", "--seed", "1", "--no-wait", "--json").json["id"]
    drawing().join()
    starred = run("pictures", order, "--number", "1", "--star", "--tag", "print", "--json")
    assert [each["number"] for each in starred.json["items"]] == [1]
    found = run("pictures", "--starred", "--tagged", "print", "-o", str(tmp_path / "kept"), "--json").json
    assert [(each["order_id"], each["number"], each["tags"]) for each in found["items"]] == [(order, 1, ["print"])]
    assert len(found["files"]) == len(list((tmp_path / "kept").iterdir())) == 1
    assert "changed 2 stars and tags" in run("pictures", "--starred", "--unstar", "--untag", "print").output
    assert run("pictures", "--starred", "--json").json["items"] == []
    assert "deleted 1 files" in run("pictures", order, "--number", "1", "--delete", "--yes").output
    assert sorted(each["number"] for each in run("pictures", "--json").json["items"]) == [0, 2]
    assert run("pictures", order, "--match", "fox").status == 2
    assert run("pictures", "--number", "1").status == 2
