"""Encodings are kept for the next attempt and for jobs that repeat one, and no bit of a result depends on that."""

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.encode.latents import CropPolicy
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import AgentRequest, Stopped
from giornata.workloads.train.inputs import encoding_cache as packs
from giornata.workloads.train.inputs.encoding import CachedInputs, cache_inputs
from giornata.workloads.train.inputs.sample_set import load_samples
from giornata.workloads.train.workload import TrainWorkload

JOB = {"max_train_steps": 3, "train_batch_size": 2, "masked_loss": True, "mixed_precision": "bf16"}


def keen(**options: Any) -> TrainWorkload:
    """Finds every pack worth its while."""
    return TrainWorkload(device="cpu", pack_worth_pixels=0, **options)


@dataclass
class CountedEncoders:
    """Counts what a base's VAE and first text encoder are asked for."""

    pictures: int = 0
    captions: int = 0

    def load(self, spec: TrainSpec, **options: Any) -> BaseModel:
        base = load_base(spec, **options)
        base.vae.encoder.register_forward_hook(lambda *_: setattr(self, "pictures", self.pictures + 1))
        base.text_encoders[0].register_forward_hook(lambda *_: setattr(self, "captions", self.captions + 1))
        return base


@pytest.fixture(scope="module")
def train_rig(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainRig:
    root = tmp_path_factory.mktemp("packs")
    return TrainRig(root=root, spec=spec_for(tiny_folder, **JOB), inputs=draw_pictures(root / "in", 3, masked=True))


@pytest.fixture(scope="module")
def first(train_rig: TrainRig) -> RecordingReporter:
    """A job that found no pack and left one."""
    return train_rig.run(workload=keen())


def test_a_job_has_the_same_bytes_with_a_pack_and_without(train_rig: TrainRig, first: RecordingReporter) -> None:
    plain = train_rig.run()
    assert not plain.puts  # a job as small as this neither asks nor leaves any
    assert len(first.puts) == 1
    counted = CountedEncoders()
    second = train_rig.run(RecordingReporter(cache=first.cache), workload=keen(load=counted.load))
    assert (counted.pictures, counted.captions) == (0, 0)
    assert not second.puts
    assert plain.artifacts == first.artifacts == second.artifacts


def test_pictures_in_a_pack_are_not_even_decoded(
    train_rig: TrainRig, first: RecordingReporter, tmp_path: Path
) -> None:
    missing = [file.model_copy(update={"path": tmp_path / file.path.name}) for file in train_rig.inputs]
    drawn_later = train_rig.run(RecordingReporter(cache=first.cache), workload=keen(), inputs=tuple(missing))
    assert drawn_later.artifacts == first.artifacts


def test_the_next_attempt_pays_nothing(train_rig: TrainRig, first: RecordingReporter) -> None:
    stopped = train_rig.run(RecordingReporter(agent_requests={1: AgentRequest.CHECKPOINT_AND_STOP}), workload=keen())
    assert stopped.puts == first.puts
    counted = CountedEncoders()
    resumed = train_rig.run(
        RecordingReporter(cache=stopped.cache),
        workload=keen(load=counted.load),
        resume=train_rig.resume_point(stopped, 1),
    )
    assert (counted.pictures, counted.captions) == (0, 0)
    assert resumed.artifacts == first.artifacts


def test_an_attempt_that_resumes_without_one_leaves_no_half_of_it(
    train_rig: TrainRig, first: RecordingReporter
) -> None:
    stopped = train_rig.run(RecordingReporter(agent_requests={2: AgentRequest.CHECKPOINT_AND_STOP}))
    counted = CountedEncoders()
    resumed = train_rig.run(workload=keen(load=counted.load), resume=train_rig.resume_point(stopped, 2))
    assert 0 < counted.pictures <= 2  # what the last step needs
    assert not resumed.puts
    assert resumed.artifacts == first.artifacts


def test_an_attempt_that_dies_while_encoding_leaves_what_it_had(
    train_rig: TrainRig, base: BaseModel, tmp_path: Path
) -> None:
    """In portions of a picture each: its views, and with the first also the captions."""
    spec = TrainSpec.model_validate(train_rig.spec | {"max_train_steps": 200})
    instances, _ = load_samples(train_rig.inputs, spec)

    def encoded(
        name: str, cache: dict[str, Path], stop_at: int | None = None
    ) -> tuple[CachedInputs | None, list[str]]:
        (directory := tmp_path / name).mkdir()
        reporter = RecordingReporter(cache=cache)
        encoding_cache = packs.EncodingCache(reporter=reporter, directory=directory, worth_pixels=0, portion_pixels=1)

        def tick(done: int, total: int) -> None:
            reporter.phases.append(("caching", done, total))
            if done == stop_at:
                raise Stopped(None)

        try:
            cached_inputs = cache_inputs(
                base, spec, (instances,), seed=42, first_step=0, tick=tick, encoding_cache=encoding_cache
            )
        except Stopped:
            cached_inputs = None
        totals.append(reporter.phases[0][2])
        return cached_inputs, reporter.puts

    totals: list[int | None] = []
    whole, all_packs = encoded("whole", {})
    views = len(CropPolicy.of(spec, seed=42).views("a"))
    assert len(all_packs) == 3 and totals[0] is not None
    cache: dict[str, Path] = {}
    _, before = encoded("killed", cache, stop_at=totals[0] - views - 1)  # in the middle of the second picture
    resumed, after = encoded("resumed", cache)
    assert (before, after) == (all_packs[:1], all_packs[1:])
    assert totals[2] == 2 * views
    assert whole is not None and resumed is not None
    for view in whole.draws.views(0, 200):
        assert torch.equal(whole.latents[view][0].mean_CHW, resumed.latents[view][0].mean_CHW)
    one_pack = packs.ShardKeys(base=base, crop_policy=CropPolicy.of(spec, seed=42), with_captions=True)
    texts = sorted({sample.caption for sample in instances.samples})
    views_of_all = list(whole.draws.views(0, 200))
    key, old = one_pack.of(views_of_all, texts), tmp_path / "old"
    packs.write_shard(old, key, packs.shard_of(whole.latents, views_of_all, whole.embeddings, texts))
    _, after = encoded("as they were before there were portions", {key: old})
    assert (after, totals[3]) == ([], 0)


def tampered(path: Path, change: str) -> None:
    with safe_open(path, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        metadata = opened.metadata()
    if change == "a latent":
        tensors["view.0.mean"][0, 0, 0] += 1
    elif change == "an index":
        metadata["giornata"] = metadata["giornata"].replace('"crop":0', '"crop":1').replace('"crop":2', '"crop":3')
    else:
        del tensors["text.0.prompt"]
    save_file(tensors, path, metadata=metadata)


@pytest.mark.parametrize(
    "damage", ["cut off", "not there", "no pack", "another key", "a latent", "an index", "a text"]
)
def test_a_pack_that_is_not_right_is_made_again(
    train_rig: TrainRig, first: RecordingReporter, tmp_path: Path, damage: str
) -> None:
    [(key, path)] = first.cache.items()
    pack = tmp_path / "pack.safetensors"
    if damage != "not there":
        pack.write_bytes(path.read_bytes()[: -7 if damage == "cut off" else None])
    if damage == "no pack":
        save_file({"a": torch.zeros(1)}, pack)
    elif damage == "another key":
        packs.write_shard(pack, "encodings-other", packs.read_shard(path, key))
    elif damage.startswith("a"):
        tampered(pack, damage)
    second = train_rig.run(RecordingReporter(cache={key: pack}), workload=keen())
    assert "made again" in second.lines[0]
    assert second.puts == [key]
    assert second.artifacts == first.artifacts


def test_a_pack_is_the_same_bytes_every_time(train_rig: TrainRig, first: RecordingReporter) -> None:
    [one], [other] = first.cache.values(), train_rig.run(workload=keen()).cache.values()
    assert one.read_bytes() == other.read_bytes()


@pytest.fixture(scope="module")
def base(tiny_folder: Path) -> BaseModel:
    return load_base(TrainSpec.model_validate(spec_for(tiny_folder)), device="cpu", dtype=torch.float32)


FULL = [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: No space left (os error 28)")]


def cache_writer(
    train_rig: TrainRig, base: BaseModel, directory: Path, error: Exception
) -> tuple[CachedInputs, RecordingReporter]:
    """The caching phase of a job, on a disk that fails so after half of the file."""

    def save(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        path.write_bytes(b"half of it")
        raise error

    spec, reporter = TrainSpec.model_validate(train_rig.spec), RecordingReporter()
    instances, _ = load_samples(train_rig.inputs, spec)
    encoding_cache = packs.EncodingCache(reporter=reporter, directory=directory, worth_pixels=0, save=save)
    prepared = cache_inputs(
        base, spec, (instances,), seed=42, first_step=0, tick=lambda *_: None, encoding_cache=encoding_cache
    )
    return prepared, reporter


@pytest.mark.parametrize("error", FULL)
def test_a_full_disk_costs_the_pack_and_not_the_job(
    train_rig: TrainRig, base: BaseModel, tmp_path: Path, error: Exception
) -> None:
    cached_inputs, reporter = cache_writer(train_rig, base, tmp_path, error)
    assert all(draw.view in cached_inputs.latents for draw in cached_inputs.draws.micro_batch(2, 0))
    assert not reporter.puts
    assert "not kept for later" in reporter.lines[0]
    assert list(tmp_path.iterdir()) == []


def test_a_defect_in_writing_a_pack_is_not_taken_for_a_full_disk(
    train_rig: TrainRig, base: BaseModel, tmp_path: Path
) -> None:
    with pytest.raises(SafetensorError, match="shape"):
        cache_writer(train_rig, base, tmp_path, SafetensorError("invalid shape"))


def test_waiting_for_a_pack_can_be_stopped(train_rig: TrainRig) -> None:
    class Stopping(RecordingReporter):
        def cache_get(self, key: str) -> Path | None:
            raise Stopped(None)

    assert train_rig.run(Stopping(), workload=keen()).lines == ["stopped at None"]


def test_the_key_knows_everything_the_encodings_depend_on(base: BaseModel, tiny_folder: Path) -> None:
    def key(captions: list[str] | None = None, picture: str = "a", **changes: Any) -> str:
        spec = TrainSpec.model_validate(spec_for(tiny_folder, **changes))
        crop_policy = CropPolicy.of(spec, seed=changes.get("seed", 42))
        length = spec.max_token_length
        return packs.shard_key(base, crop_policy, crop_policy.views(picture), captions, max_token_length=length)

    others = [
        key(captions=["a toy"]),
        key(captions=["a toy", "b"]),
        key(captions=["a toy"], max_token_length=150),
        key(picture="b"),
        key(resolution=128),
        key(random_flip=False),
        key(seed=43),
        key(masked_loss=True),
        key(resolution=256, enable_bucket=True),
        key(resolution=256, enable_bucket=True, min_bucket_reso=128),
        key(center_crop=True),
    ]
    assert len({key(), *others}) == 1 + len(others)
    assert key(captions=["b", "a toy"]) == others[1]
    assert key(center_crop=True, seed=43) == others[-1]  # no crop follows the seed
    assert key(max_token_length=150) == key()  # no caption is in it


def test_a_base_that_changed_under_its_name_has_another_key(tiny_folder: Path) -> None:
    spec = TrainSpec.model_validate(spec_for(tiny_folder))
    crop_policy = CropPolicy.of(spec, seed=42)

    def keys(change: str) -> tuple[str, str]:
        base = load_base(spec, device="cpu", dtype=torch.float32)
        module = {"vae": base.vae, "text": base.text_encoders[1], "unet": base.unet, "": None}[change]
        if module is not None:
            with torch.no_grad():
                next(module.parameters()).view(-1)[0] += 1
        return packs.shard_key(base, crop_policy, [], None), packs.shard_key(base, crop_policy, [], ["a toy"])

    plain = keys("")
    assert keys("unet") == plain  # encodes nothing
    assert keys("vae")[0] != plain[0]
    assert keys("text")[0] == plain[0]
    assert keys("text")[1] != plain[1]


def test_a_pack_of_a_family_without_pooled_text(tiny_sd15_folder: Path, tmp_path: Path) -> None:
    inputs = draw_pictures(tmp_path / "in", 2, masked=True)
    train_rig = TrainRig(root=tmp_path, spec=spec_for(tiny_sd15_folder, **JOB), inputs=inputs)
    first = train_rig.run(workload=keen())
    counted = CountedEncoders()
    second = train_rig.run(RecordingReporter(cache=first.cache), workload=keen(load=counted.load))
    assert (counted.pictures, counted.captions) == (0, 0)
    assert len(first.puts) == 1 and not second.puts
    assert first.artifacts == second.artifacts
