"""`giornata train`: everything is checked before a byte is sent."""

import hashlib
import json
import subprocess
import sys

import pytest
from PIL import Image

from giornata.protocol.node.work import Claim, NodeInfo
from giornata.protocol.presets import PRESETS, started_from
from giornata.protocol.specs import TrainSpec

NEEDED_ALONE = ["--model", "spec.rank", "--checkpoint-to", "--output"]
PROMPT = ("--instance-prompt", 'a photo of "sks" dög')


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn") / "teal heart"
    drawing = [sys.executable, "-m", "giornata.diffusion.tiny.drawings", "teal-heart", str(folder), "--count", "4"]
    subprocess.run([*drawing, "--size", "64"], check=True)
    return folder


def test_a_folder_becomes_a_job_named_after_it(run, pictures):
    done = run("train", str(pictures), *PROMPT, "--model", "some/model", "--steps", "7", "--set", "rank=4", "--json")
    assert done.status == 0
    spec = done.json["spec"]
    assert (done.json["name"], done.json["total_steps"], spec["rank"]) == ("teal heart", 7, 4)
    assert spec["instance_prompt"] == 'a photo of "sks" dög'


def test_the_same_pictures_are_sent_once(run, served, pictures):
    first = run("train", str(pictures), *PROMPT, "--model", "some/model", "--json").json
    second = run("train", str(pictures), *PROMPT, "--model", "some/model", "--json").json
    assert first["spec"]["dataset"] == second["spec"]["dataset"]
    with served.ctx.store.read() as tx:
        stored = list(served.ctx.blobs.list(""))
        assert tx is not None
    assert len(stored) == 4


def test_own_class_pictures_are_sent_as_a_dataset_of_their_own(run, pictures, tmp_path):
    theirs = tmp_path / "hearts"
    theirs.mkdir()
    for file in sorted(pictures.iterdir())[:3]:
        (theirs / file.name).write_bytes(file.read_bytes())
    asked = ("train", str(pictures), *PROMPT, "--model", "some/model", "--json", "--class-data-dir", str(theirs))
    done = run(*asked, "--set", "class_prompt=a heart")
    assert done.status == 0, done.json
    spec = done.json["spec"]
    assert spec["with_prior_preservation"] is True
    assert spec["class_dataset"] not in (None, spec["dataset"])
    refused = run(*asked, "--set", "class_dataset=ds_1")
    assert refused.status == 2
    said = [fault["where"] for fault in refused.json["error"]["faults"]]
    assert said == ["spec.class_prompt", "--class-data-dir"]
    (theirs / "broken.png").write_bytes(b"no picture")
    refused = run(*asked, "--set", "class_prompt=a heart")
    assert [fault["where"] for fault in refused.json["error"]["faults"]] == ["--class-data-dir broken.png"]


def test_a_local_model_folder_is_sent_as_an_absolute_path(run, pictures, tmp_path):
    (tmp_path / "model").mkdir()
    done = run("train", str(pictures), *PROMPT, "--model", str(tmp_path / "model" / ".." / "model"), "--json")
    assert done.json["spec"]["pretrained_model_name_or_path"] == str(tmp_path / "model")


def test_all_faults_of_a_folder_come_at_once_and_nothing_is_sent(run, served, pictures, tmp_path):
    folder = tmp_path / "bad"
    folder.mkdir()
    for file in pictures.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "empty.png").write_bytes(b"")
    (folder / "noise.jpg").write_bytes(b"not a picture at all")
    (folder / "orphan.txt").write_text("a caption without a picture")
    done = run("train", str(folder), *PROMPT, "--model", "some/model")
    assert done.status == 2
    assert all(name in done.errors for name in ("empty.png", "noise.jpg", "orphan"))
    assert list(served.ctx.blobs.list("")) == []


def test_all_faults_of_a_spec_come_at_once_with_the_field_meant(run, pictures):
    wrong = ("--set", "rnak=4", "--set", "resolution=100", "--set", "learning_rate=-1")
    done = run("train", str(pictures), *PROMPT, "--model", "some/model", *wrong)
    assert done.status == 2
    assert "rnak" in done.errors and "rank" in done.errors
    assert "resolution" in done.errors and "learning_rate" in done.errors


def test_a_spec_with_faults_sends_no_picture_and_they_are_told_with_those_of_the_pictures(run, served, pictures):
    done = run("train", str(pictures), *PROMPT, "--model", "some/model", "--set", "rank=0", "-o", "x", "--json")
    assert [fault["where"] for fault in done.json["error"]["faults"]] == ["--output", "spec.rank"]
    empty = pictures.parent / "empty"
    empty.mkdir(exist_ok=True)
    done = run("train", str(empty), *PROMPT, "--model", "some/model", "--set", "rank=0", "--json")
    assert [fault["where"] for fault in done.json["error"]["faults"]] == ["spec.rank", str(empty)]
    assert list(served.ctx.blobs.list("")) == []


def test_options_of_a_server_are_refused_together_where_there_is_none(run, pictures):
    options = ("--name", "dog", "--priority", "3", "--min-vram", "20GB")
    done = run("train", str(pictures), *PROMPT, "--standalone", *options, "--set", "rank=0", "--json")
    named = [fault["where"] for fault in done.json["error"]["faults"]]
    assert named == ["--name", "--priority", "--min-vram", *NEEDED_ALONE]


def test_errors_have_a_json_form(run, pictures):
    done = run("train", str(pictures), *PROMPT, "--model", "some/model", "--set", "rank=0", "--json")
    assert done.status == 2
    assert done.json["error"]["code"] == "invalid-input"
    assert done.json["error"]["faults"][0]["where"] == "spec.rank"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--set", "rank"), "KEY=VALUE"),
        (("--preset", "masterpiece"), "subject"),
        ((), "tiny-model"),
    ],
)
def test_a_slip_on_the_command_line_says_what_was_meant(run, pictures, arguments, word):
    model = () if word == "tiny-model" else ("--model", "some/model")
    done = run("train", str(pictures), *PROMPT, *model, *arguments)
    assert done.status == 2
    assert word in done.errors


def test_train_command_prints_one_line_per_notice_about_dataset_folder(run, tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    for number, side_px in enumerate((64, 100, 200, 201)):
        picture = Image.effect_noise((side_px, side_px), 60 + number).convert("RGB")
        picture.save(folder / f"{number}.jpg", exif=exif if number < 2 else b"")
    (folder / "0.caption").write_text("a dog\nasleep")
    (folder / "notes.doc").write_text("x")
    asked = ("train", str(folder), *PROMPT, "--model", "some/model", "--set", "resolution=192")
    done = run(*asked, "--set", "caption_extension=caption")
    assert done.status == 0, done.errors
    assert done.output.splitlines()[:5] == [
        "neither pictures nor captions (.caption, metadata.jsonl), and not read: notes.doc",
        "without a caption of their own, trained with instance_prompt: 1.jpg, 2.jpg, 3.jpg",
        "1 caption has several lines; the first is used",
        "2 of 4 pictures were turned upright",
        "2 of 4 pictures are enlarged, which blurs what is learned: 0.jpg (3.00 times), 1.jpg (1.92 times); "
        "use larger ones, a lower resolution, or enable_bucket with bucket_no_upscale",
    ]
    kept = run(
        *asked, "--set", "enable_bucket=true", "--set", "bucket_no_upscale=true", "--set", "bucket_reso_steps=64"
    )
    assert kept.status == 0, kept.errors
    assert "enlarged" not in kept.output


def test_more_pictures_than_the_project_may_have_are_refused_before_any_is_sent(run, served, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(102):
        Image.new("RGB", (64, 64), (number, 0, 0)).save(folder / f"{number}.png")
    served.client(served.keys.admin).set_project_limits("default", max_pictures=101)
    done = run("train", str(folder), *PROMPT, "--model", "some/model", "--json")
    assert done.json["error"]["faults"][0]["where"] == "DIR"
    assert (
        "holds 102 pictures; a dataset of the project may have at most 101"
        in done.json["error"]["faults"][0]["message"]
    )
    assert list(served.ctx.blobs.list("")) == []


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_shown_as_the_whole_spec_that_a_job_gets(run, pictures, name):
    shown = run("presets", "show", name, "--json").json["spec"]
    done = run("train", str(pictures), *PROMPT, "--model", "some/model", "--preset", name, "--json")
    spec = done.json["spec"]
    own = {"pretrained_model_name_or_path", "dataset", "instance_prompt", "sample_prompts", "seed", "alpha"}
    own |= {"output_name"}
    assert TrainSpec.model_validate(spec).model_dump(mode="json", exclude=own) == {
        field: value for field, value in shown.items() if field not in own
    }
    assert shown.keys() >= PRESETS[name]().keys()


TOLD_OTHERWISE = {"sample_prompts": ["a sks mug"], "instance_prompt": "a sks dog"}


@pytest.mark.parametrize(
    ("name", "given", "drawn"),
    [
        ("subject", {"instance_prompt": "a sks dog"}, ["a sks dog"]),
        ("fast", {"instance_prompt": "a sks dog", "class_prompt": "a dog"}, ["a sks dog", "a dog"]),
        ("face", {"class_prompt": "a dog"}, None),
        ("style", {"instance_prompt": "a sks dog", "sample_prompts": []}, []),
        ("subject", TOLD_OTHERWISE, ["a sks mug"]),
        ("subject", {"instance_prompt": "a --n sks"}, []),
        ("ancestor", {"instance_prompt": "a sks dog"}, None),
    ],
)
def test_a_preset_draws_the_jobs_own_prompts(name, given, drawn):
    assert started_from(name, given).get("sample_prompts") == drawn


def test_a_presets_field_is_replaced_under_any_of_its_names():
    assert started_from("subject", {"network_dim": 4})["rank"] == 4
    assert started_from("subject", {"network_dim": 4, "rank": 8}).keys() >= {"network_dim", "rank"}  # to be refused


def test_presets_are_listed_with_what_they_are_for(run):
    listed = run("presets", "--json").json["presets"]
    assert [each["name"] for each in listed] == list(PRESETS)
    assert all(each["for"].endswith(".") for each in listed)
    assert "subject" in run("presets").output


def test_preset_show_marks_values_that_are_defaults(run):
    lines = [line.split() for line in run("presets", "show", "face").output.splitlines()]
    assert ["rank", "32"] in lines
    assert ["train_batch_size", "1", "default"] in lines


def test_a_preset_that_nobody_knows(run):
    done = run("presets", "show", "nope")
    assert done.status == 2
    assert "subject, face" in done.errors


def test_a_job_is_continued_with_what_is_given_and_as_it_was_for_the_rest(run, served, pictures, tmp_path):
    first = run("train", str(pictures), *PROMPT, "--model", "some/model", "--set", "network_dim=4", "--json").json
    refused = run("train", "--continue", first["id"], "--steps", "9", "--json")
    assert (refused.status, refused.json["error"]["code"]) == (1, "illegal-transition")
    run("cancel", first["id"])
    refused = run("train", "--continue", first["id"], "--init-lora", str(tmp_path / "x"), "--json")
    assert refused.status == 2
    named = [(fault["where"], fault["message"]) for fault in refused.json["error"]["faults"]]
    missing = f"there is no file {tmp_path / 'x'}"
    assert named == [
        ("--init-lora", missing),
        ("--init-lora", "starts from a file, but --continue starts from a job"),
    ]
    refused = run("train", "--continue", first["id"], "--steps", "9", "--json")
    assert "has no checkpoint to go on from" in str(refused.json["error"])


def test_a_lora_to_start_from_is_sent_and_named_by_its_hash(run, served, pictures, tmp_path):
    (tmp_path / "theirs.safetensors").write_bytes(b"bytes of a lora")
    wanted = hashlib.sha256(b"bytes of a lora").hexdigest()
    arguments = ("train", str(pictures), *PROMPT, "--model", "some/model", "--json", "--init-lora")
    assert run(*arguments, str(tmp_path / "theirs.safetensors")).json["spec"]["init_lora"] == wanted
    done = run(*arguments, str(tmp_path / "none.safetensors"))
    assert done.status == 2
    assert "none.safetensors" in str(done.json["error"])


def test_the_memory_that_a_job_needs_is_sent_in_bytes(run, pictures):
    done = run("train", str(pictures), *PROMPT, "--model", "some/model", "--min-vram", "20GB", "--json")
    assert done.json["min_vram_bytes"] == 20 * 10**9
    done = run("train", str(pictures), *PROMPT, "--model", "some/model", "--json")
    assert done.json["min_vram_bytes"] == 0


def test_memory_that_is_no_size_is_told_with_all_the_rest(run, pictures):
    done = run("train", str(pictures), *PROMPT, "--min-vram", "much", "--json")
    assert done.status == 2
    assert [fault["where"] for fault in done.json["error"]["faults"]] == ["--model", "--min-vram"]
    done = run("train", str(pictures), *PROMPT, "--min-vram", "20GB", "--standalone")
    assert done.status == 2
    assert "--min-vram" in done.errors


def test_the_most_that_a_job_may_cost_is_sent_in_micro_dollars(run, pictures):
    done = run("train", str(pictures), *PROMPT, "--model", "some/model", "--max-cost", "0.50", "--json")
    assert done.json["budget_micro_usd"] == 500_000
    done = run("train", str(pictures), *PROMPT, "--max-cost", "much", "--min-vram", "more", "--json")
    assert done.status == 2
    assert [fault["where"] for fault in done.json["error"]["faults"]] == ["--model", "--min-vram", "--max-cost"]
    done = run("train", str(pictures), *PROMPT, "--max-cost", "1", "--standalone")
    assert (done.status, "--max-cost" in done.errors) == (2, True)


def test_train_command_without_folder_or_model_is_refused(run):
    done = run("train", "--json")
    assert done.status == 2
    assert [fault["where"] for fault in done.json["error"]["faults"]] == ["--model", "DIR"]


def test_an_estimate_says_what_is_known_and_what_it_rests_on_and_submits_nothing(run, served, pictures):
    job = ("train", str(pictures), *PROMPT, "--model", "some/model", "--steps", "1000", "--set", "resolution=1024")
    first = run(*job, "--estimate")
    assert first.status == 0
    assert "7:30 min to 37:40 min (a rough estimate)" in first.output
    assert "no finished job of this project" in first.output and "published" in first.output
    assert run("jobs", "--json").json["items"] == []
    told = run(*job, "--estimate", "--json").json
    assert (told["total_steps"], told["queue_position"], told["run_s_range"]) == (1000, 1, [450.0, 2260.0])
    node = NodeInfo(node_id="node_12345678", machine_id="m-1", name="shed", device="cpu")
    served.call("POST", "/v1/node/claim", served.keys.node, json=_claim(node))
    assert "time                not known" in run(*job, "--estimate").output


def _claim(node):
    return Claim(request_id="request-1", node=node, kinds=("train",)).model_dump(mode="json")


def test_an_estimate_goes_with_no_option_that_means_a_run(run, pictures):
    done = run(
        "train", str(pictures), *PROMPT, "--model", "some/model", "--estimate", "--follow", "--standalone", "--json"
    )
    assert done.status == 2
    assert {each["where"] for each in done.json["error"]["faults"]} == {"--follow", "--standalone"}
    continued = run("train", str(pictures), "--continue", "job_1", "--estimate", "--json")
    assert [each["where"] for each in continued.json["error"]["faults"]] == ["--continue"]


def test_captions_that_do_not_fit_are_told_with_all_else_before_anything_is_sent(run, served, pictures, tmp_path):
    folder = tmp_path / "talkative"
    folder.mkdir()
    for number, file in enumerate(sorted(pictures.iterdir())):
        (folder / f"{number}.png").write_bytes(file.read_bytes())
        (folder / f"{number}.txt").write_text("a photo of sks heart" + ", a house" * (number * 12))
    (folder / "broken.png").write_bytes(b"no picture")
    (folder / "broken.txt").write_text("house " * 300)
    asked = ("train", str(folder), "--model", "some/model", "--set", "rank=0", "--json")
    asked += ("--set", f"sample_prompts=[{json.dumps('installation ' * 76)}]")
    expected = {
        ("spec.rank", "input should be greater than or equal to 1; it is 0"),
        ("spec.sample_prompts.0", "has 76 tokens; at most 75 fit"),
        ("broken.png", "has 300 tokens; at most 75 fit"),
        ("2.png", "has 77 tokens; at most 75 fit"),
        ("3.png", "has 113 tokens; at most 75 fit"),
    }
    for more in ((), ("--estimate",), ("--standalone", "--checkpoint-to", str(tmp_path / "s"), "-o", "out")):
        done = run(*asked, *more)
        told = {(fault["where"], fault["message"]) for fault in done.json["error"]["faults"]}
        assert done.status == 2
        assert expected <= told
        assert [where for where, _ in told - expected] == ["broken.png"]  # what is wrong with the picture itself
    assert list(served.ctx.blobs.list("")) == []
    for name in ("broken.png", "broken.txt"):
        (folder / name).unlink()
    done = run("train", str(folder), "--model", "some/model", "--set", "max_token_length=150", "--json")
    assert (done.status, done.json["spec"]["max_token_length"]) == (0, 150)
    done = run("train", str(folder), "--model", "some/model", "--set", "truncate_captions=true", "--json")
    assert done.status == 0


def test_captions_of_class_pictures_are_counted_under_the_name_of_the_option(run, pictures, tmp_path):
    theirs = tmp_path / "hearts"
    theirs.mkdir()
    for number, file in enumerate(sorted(pictures.iterdir())[:3]):
        (theirs / f"{number}.png").write_bytes(file.read_bytes())
        (theirs / f"{number}.txt").write_text("house " * (70 + 5 * number))
    asked = ("--class-data-dir", str(theirs), "--set", "class_prompt=a heart", "--json")
    done = run("train", str(pictures), *PROMPT, "--model", "some/model", *asked)
    assert [(fault["where"], fault["message"]) for fault in done.json["error"]["faults"]] == [
        ("--class-data-dir 2.png", "has 80 tokens; at most 75 fit")
    ]


@pytest.mark.parametrize("tokens", [49408, 900])
def test_a_folder_is_counted_for_when_its_vocabulary_is_clips(run, pictures, tmp_path, tokens):
    (tmp_path / "model" / "tokenizer").mkdir(parents=True)
    vocabulary = {f"t{number}": number for number in range(tokens)}
    (tmp_path / "model" / "tokenizer" / "vocab.json").write_text(json.dumps(vocabulary))
    asked = ("--instance-prompt", "house " * 76, "--model", str(tmp_path / "model"), "--json")
    done = run("train", str(pictures), *asked)
    assert done.status == (2 if tokens == 49408 else 0)
