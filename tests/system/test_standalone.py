"""`giornata train --standalone` as a process: killed, stopped, spoiled, and always the same bytes in the end."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from safetensors import safe_open
from standardwebhooks import Webhook
from tests.fixtures.seaweed import seaweed  # noqa: F401
from tests.system.conftest import everybody, until

from giornata.standalone.platform import RunExitCode

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
FILES = ("pictures.safetensors", "pictures-pytorch_lora_weights.safetensors")
SPEC = {"resolution": 64, "checkpointing_steps": 20, "mixed_precision": "no", "learning_rate": 2e-3, "seed": 5}
STEPS = 60
PATIENCE_S = 240


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tiny` and `pictures`."""
    ground = tmp_path_factory.mktemp("standalone")
    subprocess.run([sys.executable, "-m", "giornata", "tiny-model", str(ground / "tiny")], check=True)
    drawing = [sys.executable, "-m", "giornata.diffusion.tiny.drawings", "teal-heart", str(ground / "pictures")]
    subprocess.run([*drawing, "--count", "4", "--size", "64"], check=True)
    return ground


@dataclass
class Tool:
    """Starts runs, each with a folder of its own."""

    ground: Path
    home: Path
    webhook: str | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, place: str, *more: str, steps: int = STEPS, **changes: object) -> "subprocess.Popen[str]":
        sets = [f"--set={name}={value}" for name, value in {**SPEC, **changes}.items() if value is not None]
        hook = ["--webhook", self.webhook] if self.webhook else []
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIORNATA_")}
        secret = {"GIORNATA_WEBHOOK_SECRET": SECRET} if self.webhook else {}
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "giornata", "--data", str(self.home / "data"), "train"),
                *(str(self.ground / "pictures"), "--standalone", "--instance-prompt", "a photo of sks toy"),
                *("--model", str(self.ground / "tiny"), "--steps", str(steps), "--json", *sets, *hook),
                *("--checkpoint-to", place, "-o", str(self.home / "out"), *more),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean | secret | self.environment,
            cwd=self.home,
        )

    def command(self, *words: str) -> "subprocess.Popen[str]":
        """A command with none of the options that `start` gives."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIORNATA_")}
        return subprocess.Popen(
            [sys.executable, "-m", "giornata", "--data", str(self.home / "data"), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean,
            cwd=self.home,
        )

    def run(self, place: str, *more: str, code: int = RunExitCode.DONE, **changes: object) -> dict:
        """To the end. The JSON object of its last line."""
        return ended(self.start(place, *more, **changes), code)

    def result(self) -> dict[str, bytes]:
        return {name: (self.home / "out" / name).read_bytes() for name in FILES}


def ended(process: "subprocess.Popen[str]", code: int = RunExitCode.DONE) -> dict:
    said, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, errors + said
    assert said.count("\n") == 1, said
    return json.loads(said)


@pytest.fixture
def tool(ground: Path, tmp_path: Path) -> Tool:
    return Tool(ground=ground, home=tmp_path)


@pytest.fixture(scope="module")
def whole(ground: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that nobody disturbed."""
    tool = Tool(ground=ground, home=tmp_path_factory.mktemp("whole"))
    tool.run(str(tool.home / "storage"))
    return tool.result()


class PostReceiver:
    """A web server that keeps what is posted to it."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        kept = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                kept.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def genuine(self) -> list[dict]:
        """The bodies, each verified by the reference library, each id once."""
        bodies = [
            Webhook(SECRET).verify(body, {k.lower(): v for k, v in headers.items()}) for headers, body in self.got
        ]
        return list({body["id"]: body for body in bodies}.values())


@pytest.fixture
def receiver() -> Iterator[PostReceiver]:
    receiver = PostReceiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def manifest(place: Path, step: int) -> Path:
    return place / "objects" / "checkpoints" / f"{step:08d}.json"


def engines_of(home: Path) -> list[int]:
    """Engines that work below this folder."""
    return [pid for pid, line, _ in everybody() if "giornata.engine" in line and parent_is_below(pid, home)]


def parent_is_below(pid: int, home: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == home
    except OSError:
        return False


def test_a_run_that_was_killed_goes_on_and_ends_with_the_same_bytes(tool, whole, receiver):
    tool.webhook, place = receiver.url, tool.home / "storage"
    process = tool.start(str(place))
    until(lambda: manifest(place, 20).exists() or process.poll() is not None, "the first checkpoint", PATIENCE_S)
    assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
    until(lambda: not engines_of(tool.home), "the end of its engine")
    assert not any((tool.home / "out").iterdir())

    said = tool.run(str(place))
    assert (said["state"], said["checkpoint"]["step"]) == ("succeeded", STEPS)
    assert said["resumed_from"] >= 20 and said["resumed_from"] % 20 == 0
    assert tool.result() == whole
    assert {each["name"] for each in said["files"]} >= set(FILES)
    assert said["webhooks"]["given_up"] == 0
    told = [(body["type"], body["data"]["step"]) for body in receiver.genuine()]
    assert told == [*(("checkpoint.committed", step) for step in (20, 40, 60)), ("job.succeeded", 60)]
    kept = {path.name for path in (place / "objects" / "checkpoints").glob("*.json")}
    assert kept == {"00000040.json", "00000060.json"}
    assert (place / "objects" / "results" / FILES[0]).read_bytes() == whole[FILES[0]]


def test_told_to_go_it_stores_a_checkpoint_and_says_that_it_has_to_go_on(tool, whole):
    place = tool.home / "storage"
    pictures = {"sample_prompts": "sks toy", "sample_steps": 1, "validation_steps": 15}
    process = tool.start(str(place), **pictures)
    until(lambda: manifest(place, 20).exists() or process.poll() is not None, "the first checkpoint", PATIENCE_S)
    process.send_signal(signal.SIGTERM)
    said = ended(process, RunExitCode.STOPPED)
    sheet = tool.home / "out" / "pictures-samples-00000015.png"
    drawn = sheet.read_bytes()
    assert said["state"] == "stopped"
    assert said["checkpoint"]["step"] >= 20
    assert manifest(place, said["checkpoint"]["step"]).exists()
    sheet.unlink()  # as on another machine
    again = tool.run(str(place), **pictures)
    assert again["resumed_from"] == said["checkpoint"]["step"]
    assert tool.result() == whole
    sheets = [f"pictures-samples-000000{step}.png" for step in (15, 30, 45)]
    assert sheet.read_bytes() == drawn
    assert {*sheets, "pictures-samples.png"} <= {each["name"] for each in again["files"]}
    assert all((tool.home / "out" / name).exists() for name in sheets)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tool, whole):
    place = tool.home / "storage"
    tool.run(str(place))
    (newest,) = (place / "objects" / "checkpoints").glob("00000060-*.safetensors")
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    for name in FILES:
        (tool.home / "out" / name).unlink()
    said = tool.run(str(place))
    assert said["resumed_from"] == 40
    assert tool.result() == whole


def test_a_run_that_is_done_is_only_exported_again(tool):
    place = tool.home / "storage"
    first = tool.run(str(place), steps=4, seed=None)
    before = tool.result()
    said = tool.run(str(place), steps=4, seed=None)
    assert (said["resumed_from"], said["seed"]) == (4, first["seed"])
    assert tool.result() == before
    # Another spec and other pictures at the same place: refused with all that differs, and nothing is touched.
    other = tool.run(str(place), "--set", "rank=3", steps=4, seed=1, code=RunExitCode.BAD_INPUT)
    named = {fault["where"] for fault in other["error"]["faults"]}
    assert named == {"spec.rank", "spec.alpha", "spec.seed"}
    assert tool.result() == before


RUN = """
pretrained_model_name_or_path = "{ground}/tiny"
output_name = "two-toys"
network_module = "networks.lora"
network_dim = 4
network_alpha = 2
network_train_unet_only = true
max_train_steps = 6
save_every_n_steps = 3
learning_rate = 1e-3
lr_scheduler = "cosine"
optimizer_type = "AdamW"
mixed_precision = "no"
seed = 5
cache_latents = true
max_data_loader_n_workers = 2
"""
DATASETS = """
[general]
enable_bucket = true
min_bucket_reso = 64
caption_extension = ".txt"
shuffle_caption = true

[[datasets]]
resolution = 128
batch_size = 2

  [[datasets.subsets]]
  image_dir = "{home}/first"
  class_tokens = "sks toy, red, on a table"
  keep_tokens = 1
  num_repeats = 2

  [[datasets.subsets]]
  image_dir = "{home}/second"
  class_tokens = "toy"
"""


def test_a_configuration_of_sd_scripts_is_trained_to_its_end(tool):
    """Two folders have repeats and kept parts of captions of their own. One file has the options of the run, and
    another one has the folders."""
    pictures = sorted((tool.ground / "pictures").glob("*.png"))
    for name, some in (("first", pictures[:2]), ("second", pictures[2:])):
        (tool.home / name).mkdir()
        for picture in some:
            (tool.home / name / picture.name).write_bytes(picture.read_bytes())
    (tool.home / "run.toml").write_text(RUN.format(ground=tool.ground))
    (tool.home / "data.toml").write_text(DATASETS.format(home=tool.home))
    files = ("--from", str(tool.home / "run.toml"), "--from", str(tool.home / "data.toml"))
    place = tool.home / "storage"
    said = ended(tool.command("train", *files, "--standalone", "--json", "--checkpoint-to", str(place), "-o", "out"))
    assert (said["state"], said["checkpoint"]["step"]) == ("succeeded", 6)
    assert {manifest(place, step).exists() for step in (3, 6)} == {True}
    with safe_open(tool.home / "out" / "two-toys.safetensors", "pt") as file:
        metadata = file.metadata()
        names = list(file.keys())
        downs = {name: tuple(file.get_slice(name).get_shape()) for name in names if "lora_down" in name}
        alphas = {file.get_tensor(name).item() for name in names if name.endswith(".alpha")}
    assert downs
    assert not any("lora_te" in name for name in downs)
    assert ({shape[0] for shape in downs.values()}, alphas) == ({4}, {2.0})
    assert (metadata["ss_network_dim"], metadata["ss_network_alpha"]) == ("4", "2.0")
    assert metadata["ss_steps"] == "6"


def test_standalone_job_refused_as_bad_input_can_be_changed_and_started_at_same_storage(tool):
    place = tool.home / "storage"
    blocks = ("--set", "lora_unet_blocks=nowhere")
    refused = tool.run(str(place), *blocks, steps=4, code=RunExitCode.BAD_INPUT)
    assert "nowhere" in str(refused["error"]["faults"])
    assert tool.run(str(place), steps=4)["resumed_from"] is None
    # What has stored a checkpoint stays what it is, though it fails later: another spec is refused.
    assert (place / "objects" / "job.json").exists()


def test_an_engine_that_dies_before_it_is_ready_is_tried_again(tool, tmp_path):
    """Nothing is wrong with the job: a driver, a full memory, a bad cable."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'giornata.engine' in sys.orig_argv:\n"
        "    os.write(2, b'CUDA error: unknown error\\n')\n"
        "    os._exit(3)\n"
    )
    tool.environment["PYTHONPATH"] = str(tmp_path)
    failed = tool.start(str(tool.home / "place"))
    said, errors = failed.communicate(timeout=PATIENCE_S)
    assert failed.returncode == RunExitCode.CRASHED, errors + said
    error = json.loads(said)["error"]
    assert error["reason"] == "crashed"
    assert error["message"] == (
        "the engine ended with exit code 3 before it was ready; its last output: CUDA error: unknown error"
    )
    assert "try again: the same command goes on from the beginning" in errors


def test_every_fault_of_the_input_comes_at_once_before_anything_is_computed(tool):
    began_s = time.monotonic()
    said = tool.run(
        "ftp://nowhere",
        *("--webhook", "nonsense", "--webhook-secret", "short", "--set", "rank=0"),
        resolution=65,
        code=RunExitCode.BAD_INPUT,
    )
    named = {fault["where"] for fault in said["error"]["faults"]}
    assert named == {"spec.rank", "spec.resolution", "--checkpoint-to", "--webhook", "--webhook-secret"}
    assert time.monotonic() - began_s < PATIENCE_S
    assert not (tool.home / "data").exists()


def test_checkpoints_go_to_s3_and_come_back_from_there(tool, seaweed, whole):  # noqa: F811
    place = f"s3://{seaweed.bucket}/runs/one?endpoint={seaweed.endpoint_url}"
    keys = {
        "GIORNATA_S3_ACCESS_KEY_ID": seaweed.credentials.access_key_id,
        "GIORNATA_S3_SECRET_ACCESS_KEY": seaweed.credentials.secret_access_key,
    }
    tool.environment = keys
    process = tool.start(place)
    line = ""
    while "checkpoint 20 is safe" not in line:
        line = process.stderr.readline()
        assert line, process.communicate()
    process.kill()
    process.communicate()
    said = tool.run(place)
    assert said["resumed_from"] >= 20
    assert tool.result() == whole


def test_options_of_a_standalone_run_are_refused_without_it(tool):
    done = subprocess.run(
        [sys.executable, "-m", "giornata", "train", str(tool.ground / "pictures"), "-o", "x", "--webhook", "y"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == RunExitCode.BAD_INPUT
    assert "--output" in done.stderr and "--webhook" in done.stderr
