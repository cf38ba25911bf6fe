"""A checkpoint is one file, whole or absent, with bytes that are a function of its content, for one job only."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open

from giornata.diffusion.draws.determinism import differences, fingerprint
from giornata.diffusion.draws.sample_order import Sample
from giornata.diffusion.files.checkpoint import (
    Header,
    data_sha256,
    read_checkpoint,
    read_header,
    spec_sha256,
    told_spec,
    write_checkpoint,
)
from giornata.diffusion.tensor_file import canonical_json
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec

SPEC = TrainSpec(pretrained_model_name_or_path="m", dataset="ds_1", seed=5, instance_prompt='a "toy" ü')
SHAPES = {"unet.a": torch.Size((2, 3)), "unet.b": torch.Size((4,))}
PRINT = {"torch": "2", "device": "cpu"}


def tensors() -> dict[str, torch.Tensor]:
    prefixes = ("adapter.", "optimizer.exp_avg.", "optimizer.exp_avg_sq.")
    return {
        prefix + name: torch.full(shape, float(number))
        for number, prefix in enumerate(prefixes)
        for name, shape in SHAPES.items()
    }


def header(step: int = 7) -> Header:
    return Header(
        step=step,
        spec=told_spec(SPEC),
        spec_sha256=spec_sha256(SPEC),
        data_sha256="d" * 64,
        fingerprint=PRINT,
        history=({"from_step": 0, "fingerprint": PRINT},),
    )


def read(path: Path, *, spec: TrainSpec = SPEC, step: int = 7, data_hash: str = "d" * 64) -> dict[str, torch.Tensor]:
    return dict(read_checkpoint(path, step=step, spec=spec, data_hash=data_hash, wanted=tensors()).tensors)


def refusal(path: Path, **changes: object) -> WorkloadFailed:
    with pytest.raises(WorkloadFailed) as caught:
        read(path, **changes)  # type: ignore[arg-type]
    return caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "c.safetensors", header(), tensors())
    return tmp_path / "c.safetensors"


def test_checkpoint_header_and_tensors_are_read_back_as_written(path: Path) -> None:
    assert read_header(path) == header()
    found = read(path)
    assert found.keys() == tensors().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors().items())
    assert [file.name for file in path.parent.iterdir()] == ["c.safetensors"]


def test_a_step_that_is_written_again_replaces_the_file(path: Path) -> None:
    write_checkpoint(path, header(step=8), tensors())
    assert read_header(path).step == 8


def test_the_bytes_are_a_function_of_the_content(path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.safetensors"
    write_checkpoint(again, header(), dict(reversed(tensors().items())))
    assert again.read_bytes() == path.read_bytes()


def test_the_header_is_json_that_others_may_read(path: Path) -> None:
    with safe_open(path, framework="pt") as opened:
        metadata = opened.metadata()
    assert list(metadata) == ["giornata"]
    fields = json.loads(metadata["giornata"])
    assert list(fields) == sorted(fields)
    assert {"step", "spec", "spec_sha256", "data_sha256", "fingerprint"} <= fields.keys()
    assert TrainSpec.model_validate(fields["spec"]) == SPEC


def test_checkpoint_of_other_spec_data_or_step_is_refused_with_every_mismatch(path: Path) -> None:
    other = SPEC.model_copy(update={"learning_rate": 1.0, "max_train_steps": 9})
    failure = refusal(path, spec=other, data_hash="e" * 64, step=8)
    assert failure.reason is Reason.BAD_SPEC
    assert [fault.where for fault in failure.faults] == ["resume.spec_sha256", "resume.data_sha256", "resume.step"]
    assert "learning_rate, max_train_steps differ" in failure.faults[0].message


def test_a_spec_in_the_header_that_does_not_hash_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    write_checkpoint(path, replace(header(), spec=header().spec | {"rank": 99}), tensors())
    assert refusal(path).faults[0].where == "resume.spec_sha256"


def test_a_field_that_the_writer_did_not_know_yet_has_its_default(tmp_path: Path) -> None:
    """A job that runs while the software is brought up to date goes on."""
    older = {name: value for name, value in header().spec.items() if name != "noise_offset"}
    path = tmp_path / "older.safetensors"
    digest = hashlib.sha256(canonical_json(older).encode()).hexdigest()
    write_checkpoint(path, replace(header(), spec=older, spec_sha256=digest), tensors())
    assert read(path).keys() == tensors().keys()
    other = SPEC.model_copy(update={"noise_offset": 0.1})
    assert "noise_offset differ" in refusal(path, spec=other).faults[0].message


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        ({"adapter.unet.a": None}, "adapter.unet.a", "is missing"),
        ({"adapter.unet.z": torch.zeros(1)}, "adapter.unet.z", "is unknown"),
        ({"adapter.unet.a": torch.zeros(3, 2)}, "adapter.unet.a", "is (3, 2)"),
        ({"optimizer.exp_avg.unet.b": torch.zeros(4, dtype=torch.float16)}, "optimizer.exp_avg.unet.b", "float16"),
        ({"adapter.unet.b": torch.full((4,), float("nan"))}, "adapter.unet.b", "not finite"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, change: dict[str, torch.Tensor | None], where: str, message: str
) -> None:
    content = {name: tensor for name, tensor in (tensors() | change).items() if tensor is not None}
    write_checkpoint(tmp_path / "c.safetensors", header(), content)
    failure = refusal(tmp_path / "c.safetensors")
    assert failure.reason is Reason.BAD_SPEC
    assert [fault.where for fault in failure.faults] == [where]
    assert message in failure.faults[0].message


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_cut_off_file_is_refused(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    assert refusal(path).reason is Reason.CRASHED


def test_a_missing_file_or_a_stranger_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent").reason is Reason.CRASHED
    write_checkpoint(tmp_path / "future", replace(header(), format=2), tensors())
    assert "format is 2" in refusal(tmp_path / "future").message


def test_a_failed_write_leaves_the_old_file(path: Path) -> None:
    """Written aside and renamed: what cannot be written does not touch what was there."""
    before = path.read_bytes()
    (path.parent / "c.safetensors.part").mkdir()
    with pytest.raises((SafetensorError, OSError)):
        write_checkpoint(path, header(step=8), tensors())
    assert path.read_bytes() == before


def test_the_data_hash_knows_contents_captions_roles_and_repeats_only() -> None:
    def sample(role: str = "instance", sha256: str = "a", caption: str = "c", name: str = "n") -> Sample:
        return Sample(role=role, sha256=sha256, caption=caption, name=name, path=Path(name))  # type: ignore[arg-type]

    one, two = sample(), sample(sha256="b")
    assert data_sha256([one, two]) == data_sha256([sample(sha256="b", name="other"), one])
    others = [[one], [one, one], [sample(role="class"), two], [sample(caption="d"), two], [sample(sha256="e"), two]]
    assert len({data_sha256(samples) for samples in [[one, two], *others]}) == 6
    assert data_sha256([replace(one, repeats=2), two]) != data_sha256([one, two])
    # of before there were repeats: checkpoints of then resume now
    assert data_sha256([one]) == hashlib.sha256(b'[["instance","a","c"]]').hexdigest()


def test_the_fingerprint_of_this_process_can_be_written_and_compared() -> None:
    ours = fingerprint(torch.device("cpu"))
    assert json.loads(json.dumps(ours)) == ours
    assert differences(ours, dict(ours)) == {}
    assert differences(ours, ours | {"threads": 99}) == {"threads": [ours["threads"], 99]}
    assert differences({}, {"new": 1}) == {"new": [None, 1]}


def test_the_fingerprint_of_a_cpu_says_how_mkl_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    prints = []
    for mode in ("AUTO,STRICT", "COMPATIBLE"):
        monkeypatch.setenv("MKL_CBWR", mode)
        prints.append(fingerprint(torch.device("cpu")))
    assert differences(*prints) == {"mkl_cbwr": ["AUTO,STRICT", "COMPATIBLE"]}
