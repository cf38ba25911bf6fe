"""Where encodings lie, and how many pictures are encoded together, is a matter of room: the bytes are the same."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.base.models import load_base
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import AgentRequest
from giornata.workloads.train.inputs.encoding import CachedInputs, cache_inputs
from giornata.workloads.train.inputs.encoding_cache import EncodingCache
from giornata.workloads.train.inputs.sample_set import load_samples
from giornata.workloads.train.workload import TrainWorkload

JOB = {"max_train_steps": 3, "train_batch_size": 2, "masked_loss": True}


@pytest.fixture(scope="module")
def train_rig(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainRig:
    root = tmp_path_factory.mktemp("encoding")
    return TrainRig(root=root, spec=spec_for(tiny_folder, **JOB), inputs=draw_pictures(root / "in", 3, masked=True))


def test_a_job_whose_encodings_lie_on_the_disk_ends_with_the_same_weights(train_rig: TrainRig) -> None:
    """Stopped and resumed, and with packs; the file of the encodings is gone at the end."""
    whole = train_rig.run()
    on_disk = train_rig.spec | {"latent_memory_bytes": 0}
    first = train_rig.run(
        RecordingReporter(agent_requests={2: AgentRequest.CHECKPOINT_AND_STOP}),
        workload=TrainWorkload(device="cpu", pack_worth_pixels=0),
        spec=on_disk,
    )
    second = train_rig.run(spec=on_disk, resume=train_rig.resume_point(first, 2))
    assert second.notices == []
    assert held_files(train_rig.root) == []
    names = [name for name in whole.artifacts if name.endswith(".safetensors")]
    assert names
    for name in names:
        assert tensors(second.artifacts[name]) == tensors(whole.artifacts[name])
    plain = train_rig.run(workload=TrainWorkload(device="cpu", pack_worth_pixels=0))
    assert [path.read_bytes() for path in first.cache.values()] == [
        path.read_bytes() for path in plain.cache.values()
    ]


def held_files(folder: Path) -> list[str]:
    """Files below the folder that this process has open; those without a name too."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            links.append(str(link.readlink()))
    return [link for link in links if link.startswith(str(folder))]


def tensors(content: bytes) -> bytes:
    """What follows the header of a file of safetensors, which holds the spec."""
    return content[8 + int.from_bytes(content[:8], "little") :]


BUCKETS = {"enable_bucket": True, "bucket_reso_steps": 16, "min_bucket_reso": 32, "max_bucket_reso": 128}


def test_an_attempt_that_resumes_encodes_the_rest_with_the_same_bits(tiny_folder: Path, tmp_path: Path) -> None:
    """Four at a time, in buckets: other pictures are together then. Packs are offered once they are whole."""
    sizes = ((64, 70), (64, 130), (130, 60), (64, 131), (90, 60))
    spec = TrainSpec.model_validate(spec_for(tiny_folder, max_train_steps=30, **BUCKETS))
    base = load_base(spec, device="cpu", dtype=torch.float32)
    instances, _ = load_samples(draw_pictures(tmp_path / "in", 9, sizes=sizes), spec)
    reporter = RecordingReporter()

    def encoded(first_step: int, encoding_cache: EncodingCache | None = None) -> CachedInputs:
        return cache_inputs(
            base,
            spec,
            (instances,),
            seed=42,
            first_step=first_step,
            tick=lambda *_: None,
            encoding_cache=encoding_cache,
            rows_of=lambda _: 4,
        )

    encoding_cache = EncodingCache(reporter=reporter, directory=tmp_path, worth_pixels=0, portion_pixels=1)
    whole, rest = encoded(0, encoding_cache), encoded(25)
    assert len(reporter.puts) == 9
    views = rest.draws.views(25, 30)
    assert 0 < len(views) < len(whole.draws.views(0, 30))
    for view in views:
        one, other = whole.latents[view][0], rest.latents[view][0]
        assert torch.equal(one.mean_CHW, other.mean_CHW)
        assert torch.equal(one.std_CHW, other.std_CHW)
    again = encoded(0, encoding_cache)
    assert len(reporter.puts) == 9
    assert all(torch.equal(again.latents[view][0].mean_CHW, whole.latents[view][0].mean_CHW) for view in views)
