"""Class pictures are drawn once, shared, checked, and drawn again when they cannot be used."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.base.models import BaseModel, load_base
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import AgentRequest, Stopped
from giornata.workloads.train.inputs import class_images
from giornata.workloads.train.inputs.sample_set import SampleSet

PRIOR = {"with_prior_preservation": True, "class_prompt": "a toy", "num_class_images": 2, "max_train_steps": 2}


@pytest.fixture(scope="module")
def base(tiny_folder: Path) -> BaseModel:
    return load_base(TrainSpec.model_validate(spec_for(tiny_folder)), device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def train_rig(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainRig:
    root = tmp_path_factory.mktemp("class-images")
    return TrainRig(root=root, spec=spec_for(tiny_folder, **PRIOR), inputs=draw_pictures(root / "in", 2))


@pytest.fixture(scope="module")
def first(train_rig: TrainRig) -> RecordingReporter:
    """A job that found no class pictures and drew them."""
    return train_rig.run()


def spec(folder: Path, **changes: Any) -> TrainSpec:
    return TrainSpec.model_validate(spec_for(folder, **PRIOR) | changes)


def test_a_picture_is_a_function_of_its_number(base: BaseModel, tiny_folder: Path) -> None:
    first, second = (class_images.draw(base, spec(tiny_folder), number) for number in (0, 1))
    assert first.shape == (64, 64, 3)
    assert first.dtype is torch.uint8
    assert first.float().std() > 1.0
    assert not torch.equal(first, second)
    torch.manual_seed(99)
    assert torch.equal(second, class_images.draw(base, spec(tiny_folder, seed=7), 1))


def test_the_key_knows_everything_the_pictures_depend_on_and_nothing_else(base: BaseModel, tiny_folder: Path) -> None:
    key = class_images.cache_key(base, "0" * 64, spec(tiny_folder))
    assert class_images.cache_key(base, "1" * 64, spec(tiny_folder)) != key
    same = {"seed": 9, "rank": 7, "instance_prompt": "another"}
    assert class_images.cache_key(base, "0" * 64, spec(tiny_folder, **same)) == key
    changes = ({"class_prompt": "a dog"}, {"num_class_images": 3}, {"resolution": 72}, {"max_token_length": 150})
    for change in changes:
        assert class_images.cache_key(base, "0" * 64, spec(tiny_folder, **change)) != key


def test_a_second_job_takes_them_from_the_cache(train_rig: TrainRig, first: RecordingReporter) -> None:
    assert len(first.puts) == 1
    second = train_rig.run(RecordingReporter(cache=first.cache))
    assert not second.puts
    assert second.artifacts == first.artifacts


def test_a_base_that_changed_under_its_name_draws_its_own(tiny_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_folder, model)
    train_rig = TrainRig(root=tmp_path, spec=spec_for(model, **PRIOR), inputs=draw_pictures(tmp_path / "in", 2))
    first = train_rig.run()
    [weights] = (model / "unet").glob("*.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in load_file(weights).items()}, weights)
    second = train_rig.run(RecordingReporter(cache=first.cache))
    assert len(second.puts) == 1
    assert second.puts != first.puts
    one, other = (path.read_bytes() for path in second.cache.values())
    assert one != other


@pytest.mark.parametrize("damage", ["cut off", "a bit", "not there", "another key"])
def test_a_damaged_pack_is_drawn_again(
    train_rig: TrainRig, first: RecordingReporter, tiny_folder: Path, damage: str
) -> None:
    [(key, path)] = first.cache.items()
    content = bytearray(path.read_bytes())
    if damage == "cut off":
        content = content[:-5]
    elif damage == "a bit":
        content[-5] ^= 1
    pack = path.with_name(damage)
    if damage == "another key":
        class_images.write_pack(pack, "other", class_images.read_pack(path, key, spec(tiny_folder)))
    elif damage != "not there":
        pack.write_bytes(content)
    second = train_rig.run(RecordingReporter(cache={key: pack}))
    assert second.puts == [key]
    assert "drawn again" in second.lines[0]
    assert second.artifacts == first.artifacts


def test_the_pack_is_the_same_bytes_every_time(train_rig: TrainRig, first: RecordingReporter) -> None:
    [one], [other] = first.cache.values(), train_rig.run().cache.values()
    assert one != other
    assert one.read_bytes() == other.read_bytes()


def test_drawing_can_be_stopped_between_pictures(train_rig: TrainRig) -> None:
    class StopsAfterOne(RecordingReporter):
        def agent_request(self) -> AgentRequest:
            return AgentRequest.STOP if self.phases[-1] == ("caching", 1, 2) else AgentRequest.GO_ON

    reporter = StopsAfterOne()
    train_rig.run(reporter)
    assert reporter.lines == ["stopped at None"]
    assert not reporter.puts


def test_many_pictures_are_kept_while_they_are_drawn(base: BaseModel, tiny_folder: Path, tmp_path: Path) -> None:
    job, told = spec(tiny_folder, num_class_images=3), list[int]()

    def obtained(cache: dict[str, Path], stop_at: int = -1) -> tuple[SampleSet | None, list[str]]:
        reporter = RecordingReporter(cache=cache)

        def tick(done: int, total: int) -> None:
            told.append(done)
            if done == stop_at:
                raise Stopped(None)

        try:
            given: dict[str, Any] = {"directory": tmp_path, "reporter": reporter, "tick": tick, "portion": 2}
            return class_images.obtain(base, job, base_sha256="0" * 64, **given), reporter.puts
        except Stopped:
            return None, reporter.puts

    cache: dict[str, Path] = {}
    _, before = obtained(cache, stop_at=2)
    told.clear()
    made, after = obtained(cache)
    assert (len(before), len(after)) == (1, 1)
    assert told == [0, 2, 3]
    assert made is not None and len(made.samples) == 3
    old, key = tmp_path / "old", class_images.cache_key(base, "0" * 64, job)
    pictures = [torch.from_numpy(np.array(made.load(each))) for each in made.samples]
    class_images.write_pack(old, key, torch.stack(pictures))
    again, puts = obtained({key: old})  # as they were kept before
    assert again is not None and not puts
    assert [each.sha256 for each in again.samples] == [each.sha256 for each in made.samples]


def test_resume_with_other_class_pictures_gives_a_notice(train_rig: TrainRig, tiny_folder: Path) -> None:
    """Another node's pack may have won the race for the key: the job goes on, and says so."""
    first = train_rig.run(RecordingReporter(agent_requests={1: AgentRequest.CHECKPOINT_AND_STOP}))
    [key] = first.puts
    other = train_rig.root / "other.safetensors"
    class_images.write_pack(other, key, torch.zeros(2, 64, 64, 3, dtype=torch.uint8) + 90)
    second = train_rig.run(RecordingReporter(cache={key: other}), resume=train_rig.resume_point(first, 1))
    assert list(second.notices[0][1]["differences"]) == ["class_pictures"]


def test_equal_class_pictures_do_no_harm() -> None:
    pictures = torch.zeros(3, 64, 64, 3, dtype=torch.uint8)
    job = TrainSpec(pretrained_model_name_or_path="m", dataset="ds_1", with_prior_preservation=True, class_prompt="c")
    sample_set = class_images.sample_set(pictures, job)
    assert len(sample_set.samples) == 3
    assert sample_set.load(sample_set.samples[0]).size == (64, 64)
