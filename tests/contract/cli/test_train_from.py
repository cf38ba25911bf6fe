"""`giornata train --from`: another trainer's configuration is told whole before a byte is sent."""

import subprocess
import sys

import pytest

RUN = """
pretrained_model_name_or_path = "some/model-xl"
network_module = "networks.lora"
network_dim = 8
network_alpha = 4
max_train_steps = 30
resolution = 64
cache_latents = true
"""
DATASETS = """
[[datasets]]
batch_size = 2
  [[datasets.subsets]]
  image_dir = "{folder}/dogs"
  class_tokens = "sks dog"
  num_repeats = 5
  [[datasets.subsets]]
  image_dir = "{folder}/cats"
  class_tokens = "cat"
"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    drawing = [sys.executable, "-m", "giornata.diffusion.tiny.drawings", "teal-heart", str(folder), "--count", "4"]
    subprocess.run([*drawing, "--size", "64"], check=True)
    return sorted(path.read_bytes() for path in folder.glob("*.png"))


@pytest.fixture
def files(tmp_path, drawn):
    for name, numbers in (("dogs", (0, 1)), ("cats", (2, 3))):
        (tmp_path / name).mkdir()
        for number in numbers:
            (tmp_path / name / f"{number}.png").write_bytes(drawn[number])
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "data.toml").write_text(DATASETS.format(folder=tmp_path))
    return tmp_path


def _from(files, *names):
    return [part for name in names for part in ("--from", str(files / name))]


def test_a_run_of_several_folders_becomes_a_job(run, served, files):
    done = run("train", *_from(files, "run.toml", "data.toml"), "--set", "network_dim=16", "--json")
    assert done.status == 0, done.errors
    spec = done.json["spec"]
    expected = {"rank": 16, "alpha": 4.0, "max_train_steps": 30, "train_batch_size": 2, "center_crop": True}
    assert {name: spec[name] for name in expected} == expected
    assert done.json["name"] == "dogs"
    items = served.client().get_dataset(spec["dataset"]).items
    assert [(item.name, item.caption, item.repeats) for item in items] == [
        ("dogs - 0.png", "sks dog", 5),
        ("dogs - 1.png", "sks dog", 5),
        ("cats - 2.png", "cat", 1),
        ("cats - 3.png", "cat", 1),
    ]
    assert "network_alpha" in done.errors
    assert "no effect here: cache_latents" in done.errors


def test_a_look_tells_everything_as_data_and_sends_nothing(run, served, files):
    done = run("train", *_from(files, "run.toml", "data.toml"), "--steps", "7", "--show", "--json")
    assert done.status == 0, done.errors
    told = {row["key"]: (row["setting"], row["ours"], row["implied"]) for row in done.json["taken"]}
    assert told["network_dim"] == ("rank", 8, False)
    assert told["optimizer_args.weight_decay"] == ("adam_weight_decay", 0.01, True)
    assert done.json["spec"]["max_train_steps"] == 7
    assert done.json["without_meaning"] == ["cache_latents"]
    assert [(each["repeats"], each["caption"]) for each in done.json["pictures"]] == [(5, "sks dog"), (1, "cat")]
    assert list(served.ctx.blobs.list("")) == []


def test_refused_keys_stop_the_job_together_with_all_other_faults(run, served, files):
    (files / "run.toml").write_text(RUN + "color_aug = true\nmystery = 2\n")
    (files / "cats" / "broken.png").write_bytes(b"no picture")
    asked = ("train", *_from(files, "run.toml", "data.toml"), "--set", "max_train_steps=0")
    done = run(*asked, "--json")
    assert done.status == 2
    faults = {fault["where"]: fault["hint"] for fault in done.json["error"]["faults"]}
    assert faults["--from color_aug"] == "--ignore color_aug"
    assert {"--from mystery", "spec.max_train_steps", "cats - broken.png"} <= faults.keys()
    assert list(served.ctx.blobs.list("")) == []


def test_ignored_keys_are_let_go_and_a_look_says_what_is_refused(run, files):
    (files / "run.toml").write_text(RUN + "color_aug = true\nfull_bf16 = true\n")
    asked = ("train", *_from(files, "run.toml", "data.toml"), "--show", "--json")
    refused = run(*asked)
    assert (refused.status, [row["key"] for row in refused.json["refused"]]) == (2, ["full_bf16", "color_aug"])
    kept = run(*asked, "--ignore", "color_aug", "--ignore", "full_bf16")
    assert (kept.status, kept.json["refused"]) == (0, [])
    assert {"color_aug", "full_bf16"} <= set(kept.json["without_meaning"])


def test_a_look_says_what_is_to_be_mended_in_the_spec(run, files):
    (files / "run.toml").write_text(RUN + 'optimizer_type = "Lion_or_so"\nmin_timestep = 900\nmax_timestep = 100\n')
    done = run("train", *_from(files, "run.toml", "data.toml"), "--ignore", "optimizer_type", "--show", "--json")
    assert done.status == 2
    assert "min_timestep is not below max_timestep" in str(done.json["faults"])


def test_a_folder_on_the_command_line_goes_before_those_of_the_file(run, files):
    folder = str(files / "empty")
    (files / "empty").mkdir()
    done = run("train", folder, *_from(files, "run.toml", "data.toml"), "--instance-prompt", "x", "--json")
    faults = done.json["error"]["faults"]
    assert [fault["where"] for fault in faults] == [folder]


def test_options_that_win_take_what_goes_with_a_key_along(run, files):
    lines = "enable_bucket = true\nmin_bucket_reso = 32\nbucket_reso_steps = 32\nmax_train_epochs = 2\n"
    (files / "run.toml").write_text(RUN + lines)
    asked = ("train", *_from(files, "run.toml", "data.toml"), "--show", "--json")
    spec = run(*asked, "--set", "enable_bucket=false", "--steps", "9").json["spec"]
    assert "min_bucket_reso" not in spec
    assert "num_train_epochs" not in spec


@pytest.mark.parametrize(
    ("options", "where"),
    [(("--preset", "subject"), "--preset"), (("--continue", "last"), "--continue")],
)
def test_starting_points_do_not_go_with_a_file(run, files, options, where):
    done = run("train", *_from(files, "run.toml", "data.toml"), *options, "--show", "--json")
    assert [fault["where"] for fault in done.json["error"]["faults"]] == [where]


def test_show_and_ignore_options_without_from_file_are_refused(run, files):
    done = run("train", str(files / "dogs"), "--show", "--ignore", "color_aug", "--json")
    assert {"--show", "--ignore"} <= {fault["where"] for fault in done.json["error"]["faults"]}


def test_a_standalone_run_reads_several_folders_too(run, files):
    done = run("train", *_from(files, "run.toml", "data.toml"), "--standalone", "--set", "rank=0", "--json")
    places = {fault["where"] for fault in done.json["error"]["faults"]}
    assert "DIR" not in places
    assert {"spec.rank", "--output"} <= places
