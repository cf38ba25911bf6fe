"""`giornata verify --repeat`: a job that a node trained for a server is trained again without one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.system.conftest import Up

from giornata.cli.ui.output import EXIT_BAD_INPUT
from giornata.protocol.provenance import SignedProvenance

PATIENCE_S = 300.0
FIELDS = ("resolution=64", "mixed_precision=no", "checkpointing_steps=4", "learning_rate=2e-3", "seed=5")
FILES = {"pictures.safetensors", "pictures-pytorch_lora_weights.safetensors"}


def giornata(*words: str, cwd: Path, code: int = 0) -> str:
    """Standard output of a command that ends with this exit code."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIORNATA_")}
    done = subprocess.run(
        [sys.executable, "-m", "giornata", *words],
        check=False,
        cwd=cwd,
        env=clean,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout


def test_a_job_that_is_repeated_from_its_record_has_the_same_bytes(
    start_up: Callable[..., Up], tmp_path: Path
) -> None:
    giornata("tiny-model", "tiny", cwd=tmp_path)
    drawings = [sys.executable, "-m", "giornata.diffusion.tiny.drawings", "teal-heart", str(tmp_path / "pictures")]
    subprocess.run([*drawings, "--count", "4", "--size", "64"], check=True)
    home = start_up("--nodes", "1")
    data = ("--data", str(home.data))
    sets = [f"--set={each}" for each in FIELDS]
    asked = ("--instance-prompt", "a photo of sks toy", "--model", str(tmp_path / "tiny"), "--steps", "8")
    giornata(*data, "train", "pictures", *asked, *sets, "--follow", "-o", "first", cwd=tmp_path)
    record = giornata(*data, "job", "last", "--provenance", cwd=tmp_path)
    (tmp_path / "record.json").write_text(record)
    (tmp_path / "job.json").write_text(giornata(*data, "job", "last", "--json", cwd=tmp_path))
    assert home.end() == 0
    signed = SignedProvenance.model_validate_json(record)
    assert [entry["from_step"] for entry in signed.provenance.fingerprints] == [0]

    again = ("verify", "record.json", "--public-key", signed.public_key, "--repeat", "--spec", "job.json", "--json")
    alone = ("--data", str(tmp_path / "alone"))
    said = giornata(*alone, *again, "--data-dir", "pictures", "-o", "again", cwd=tmp_path)
    told = json.loads(said.splitlines()[-1])
    assert (told["verdict"], told["conditions"]) == ("same", [])
    assert set(told["same"]) >= FILES
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()

    (picture, *_) = sorted((tmp_path / "pictures").glob("*.png"))
    picture.with_suffix(".txt").write_text("another caption")
    refused = giornata(*alone, *again, "--data-dir", "pictures", "-o", "refused", cwd=tmp_path, code=EXIT_BAD_INPUT)
    (fault,) = json.loads(refused.splitlines()[-1])["error"]["faults"]
    assert fault["where"] == "--data-dir"
    assert not (tmp_path / "refused" / "checkpoints" / "objects" / "checkpoints").exists()
