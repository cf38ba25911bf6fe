"""What `giornata verify --repeat` refuses before it computes, and what it says of other bytes."""

import base64
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from giornata.cli.jobs.repeat import RepeatVerdict, compare
from giornata.cli.main import app
from giornata.cli.ui.output import EXIT_BAD_INPUT
from giornata.domain.jobs.job import JobState
from giornata.protocol.provenance import Provenance, ProvenanceFile, SignedProvenance, canonical_bytes

SPEC: dict[str, Any] = {"pretrained_model_name_or_path": "/models/tiny", "dataset": "ds_1", "max_train_steps": 8}
LORA, CARD = b"the lora", b"the card"
ALONE = {"from_step": 0, "fingerprint": {"device": "cpu", "torch": "2.13.0"}}
KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)


def record(**changes: Any) -> Provenance:
    files = [("lora.safetensors", LORA), ("README.md", CARD)]
    told: dict[str, Any] = {
        "job_id": "job_1",
        "state": JobState.SUCCEEDED,
        "suspect": False,
        "spec_sha256": hashlib.sha256(canonical_bytes(SPEC)).hexdigest(),
        "base_sha256": "b" * 64,
        "fingerprints": (ALONE,),
        "checkpoints": (),
        "audits": (),
        "files": tuple(
            ProvenanceFile(name=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
            for name, content in files
        ),
        "issued_at": datetime(2026, 11, 1, tzinfo=UTC),
    }
    return Provenance(**{**told, **changes})


def made(folder: Path, *, lora: bytes = LORA, card: bytes = CARD) -> Path:
    (folder / "lora.safetensors").write_bytes(lora)
    (folder / "README.md").write_bytes(card)
    return folder


def summary(**fingerprint: str) -> dict[str, Any]:
    return {
        "base_sha256": "b" * 64,
        "fingerprints": [{"from_step": 0, "fingerprint": {**ALONE["fingerprint"], **fingerprint}}],  # type: ignore[dict-item]
    }


def test_equal_lora_files_are_the_same_whatever_the_conditions_and_the_card(tmp_path: Path) -> None:
    found = compare(record(), summary(device="another"), made(tmp_path, card=b"another card"))
    assert (found.verdict, found.same, found.different) == (RepeatVerdict.SAME, ("lora.safetensors",), ("README.md",))


def test_other_bytes_under_equal_conditions_are_different(tmp_path: Path) -> None:
    found = compare(record(), summary(), made(tmp_path, lora=b"another lora"))
    assert (found.verdict, found.conditions) == (RepeatVerdict.DIFFERENT, ())


def test_a_lora_file_that_the_repeat_did_not_make_is_different(tmp_path: Path) -> None:
    made(tmp_path).joinpath("lora.safetensors").unlink()
    assert compare(record(), summary(), tmp_path).verdict is RepeatVerdict.DIFFERENT


def test_other_bytes_under_other_conditions_say_nothing_and_each_condition_is_named(tmp_path: Path) -> None:
    told = summary(device="another", torch="2.14.0") | {"base_sha256": "c" * 64}
    found = compare(record(), told, made(tmp_path, lora=b"another lora"))
    assert found.verdict is RepeatVerdict.OTHER_CONDITIONS
    assert found.conditions == (
        "the base model has other weights than that of the job",
        'device was "cpu", and is "another" here',
        'torch was "2.13.0", and is "2.14.0" here',
    )


def test_other_bytes_of_a_record_without_conditions_say_nothing(tmp_path: Path) -> None:
    found = compare(record(fingerprints=()), summary(), made(tmp_path, lora=b"another lora"))
    assert found.verdict is RepeatVerdict.OTHER_CONDITIONS


def refused(folder: Path, found: Provenance, *words: str) -> list[str]:
    """Places of the faults with which the command refuses to repeat this record."""
    signature = KEY.sign(canonical_bytes(found.model_dump(mode="json")))
    public = base64.b64encode(KEY.public_key().public_bytes_raw()).decode()
    signed = SignedProvenance(provenance=found, public_key=public, signature=base64.b64encode(signature).decode())
    (folder / "record.json").write_text(signed.model_dump_json())
    said = CliRunner().invoke(app, ["verify", str(folder / "record.json"), "--public-key", public, *words, "--json"])
    assert said.exit_code == EXIT_BAD_INPUT, said.output
    return [fault["where"] for fault in json.loads(said.stdout.splitlines()[-1])["error"]["faults"]]


def test_options_of_a_repeat_are_refused_without_it(tmp_path: Path) -> None:
    assert refused(tmp_path, record(), "--spec", "job.json", "-o", "again") == ["--spec", "--output"]


def test_all_that_a_repeat_lacks_is_told_at_once(tmp_path: Path) -> None:
    found = record(state=JobState.FAILED, datasets={"dataset": "ds_1", "class_dataset": "ds_2"})
    places = refused(tmp_path, found, "--repeat")
    assert places == ["--spec", "--data-dir", "--output", "provenance.state", "--class-data-dir"]


@pytest.mark.parametrize(
    "history",
    [
        (ALONE, {"from_step": 4, "fingerprint": {"device": "another"}}),
        ({"from_step": 0, "fingerprint": {"device": "cpu", "joint": {"place": 0, "width": 2, "rank": 16}}},),
    ],
)
def test_job_that_one_machine_alone_cannot_repeat_is_refused(
    tmp_path: Path, history: tuple[dict[str, Any], ...]
) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"spec": SPEC}))
    words = ("--repeat", "--spec", str(tmp_path / "job.json"), "--data-dir", str(tmp_path), "-o", str(tmp_path / "o"))
    assert refused(tmp_path, record(fingerprints=history), *words) == ["provenance.fingerprints"]


def test_another_spec_and_a_base_of_another_name_are_refused_together(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"spec": {**SPEC, "max_train_steps": 9}}))
    words = ("--spec", str(tmp_path / "job.json"), "--data-dir", str(tmp_path), "-o", str(tmp_path / "o"))
    assert refused(tmp_path, record(), "--repeat", *words, "--model", "/models/other") == ["--spec", "--model"]
