"""No seam shows: wherever a job was interrupted, and wherever it went on, its files have the same bytes.

Every second attempt gets its pictures in another order and under other names; every attempt is a workload of its
own that loads the model anew.
"""

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from tests.fixtures.kernels import needs_compiler
from tests.fixtures.resumed_jobs import ELSEWHERE, JOBS, PICTURES
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, input_file, spec_for
from torch.nn.modules.module import register_module_forward_pre_hook

from giornata.diffusion.files.formats import FILE_NAMES
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import AgentRequest

# Several stops only where the later one meets another state: each costs a run, and any step is drawn below.
STOPS = [
    ("everything", (3, 11)),  # in the warm-up, and in the middle of an epoch
    ("bf16", (2, 5)),  # an epoch ends at 5
    ("own class pictures", (6,)),
    ("selective gradient checkpointing", (3,)),
    ("another objective", (6,)),
    ("edm style", (5,)),
    ("new tokens", (3, 8)),  # they have stopped at 6
    ("two kinds of new tokens, and text encoders", (5, 9)),
    ("averaged, and text encoders that stop", (4, 8)),
    ("prodigy", (5,)),
    ("lion, with dropouts, bounds and rates", (4,)),
    ("came, with other noise", (5,)),
    ("adafactor", (3,)),
    ("schedule-free", (7,)),
    ("eight bits", (5,)),
    ("changing captions", (5,)),
    ("dora, layer by layer", (4, 9)),
    ("lokr", (5,)),
    ("from a lora", (3,)),
    ("buckets, repeats and resolutions", (4,)),
    ("buckets without enlarging", (5,)),
    ("masks and the base's own prediction", (3,)),
    ("the base's own prediction, and text encoders", (4, 7)),
    ("Stable Diffusion 1.5, new tokens", (3, 8)),
    ("Stable Diffusion 1.5", (4,)),
    ("Stable Diffusion 1.5, everything", (7,)),
    ("a base of whole numbers", (5,)),
    ("a base of 8-bit floats", (4,)),
    pytest.param("compiled", (5,), marks=[needs_compiler, pytest.mark.long, pytest.mark.timeout(1200)]),
]


@pytest.fixture(scope="module")
def train_rigs(tiny_folder: Path, tiny_sd15_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The train_rig of a job by its name, with the files of an uninterrupted run."""
    root = tmp_path_factory.mktemp("jobs")

    @cache
    def train_rig(name: str) -> tuple[TrainRig, dict[str, bytes]]:
        shapes = PICTURES.get(name, {})
        inputs = draw_pictures(root / name / "pictures", 5, **shapes)
        if JOBS[name].get("class_dataset"):
            inputs += draw_pictures(root / name / "class", 4, first=50, role="class", **shapes)
        fields = dict(JOBS[name])
        if fields.get("init_lora"):
            path = root / "start.safetensors"
            path.write_bytes(train_rig("bf16")[1]["lora-kohya.safetensors"])
            inputs = [*inputs, input_file(path, role="init_lora")]
            fields["init_lora"] = inputs[-1].sha256
        model = tiny_sd15_folder if name.startswith("Stable Diffusion 1.5") else tiny_folder
        made = TrainRig(root=root / name, spec=spec_for(model, **fields), inputs=inputs)
        whole = made.run()
        assert sorted(whole.metrics) == list(range(1, 13))
        formats = fields.get("output_formats", ("kohya", "diffusers"))
        embeddings = {"embeddings.safetensors"} if fields.get("train_text_encoder_ti") else set()
        embeddings |= {"samples.png"} if fields.get("sample_prompts") else set()
        assert set(whole.artifacts) >= embeddings | {"README.md", *(FILE_NAMES[kind] for kind in formats)}
        return made, whole.artifacts

    return train_rig


@pytest.mark.parametrize(("job", "stops"), STOPS)
def test_stopped_and_resumed_elsewhere(train_rigs: Any, job: str, stops: Sequence[int]) -> None:
    """Again and again, where it has several stops."""
    train_rig, whole = train_rigs(job)
    reporter, step = None, 0
    for stop_at in stops:
        resume = None if reporter is None else train_rig.resume_point(reporter, step)
        reporter = train_rig.run(
            RecordingReporter(agent_requests={stop_at: AgentRequest.CHECKPOINT_AND_STOP}), resume=resume
        )
        assert reporter.lines[-1] == f"stopped at {stop_at}"
        assert not reporter.artifacts
        assert sorted(reporter.metrics) == list(range(step + 1, stop_at + 1))
        step = stop_at
    last = train_rig.run(resume=train_rig.resume_point(reporter, step))
    assert sorted(last.metrics) == list(range(step + 1, 13))
    assert last.artifacts == whole
    assert not last.notices


class KilledAttempt(BaseException):
    """What SIGKILL would do, as far as the next attempt can tell."""


class DoomedReporter(RecordingReporter):
    """Dies when that step is done."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
        super().progress(step, total, metrics)
        if step == self.at:
            raise KilledAttempt


@pytest.mark.parametrize("resume_at", [4, 8])
def test_killed_and_resumed_from_what_there_was(train_rigs: Any, resume_at: int) -> None:
    """Also from a checkpoint before the last: two steps or six are done again, to the same effect."""
    train_rig, whole = train_rigs("bf16")
    every_four = train_rig.spec | {"checkpointing_steps": 4}
    reporter = DoomedReporter(at=10)
    with pytest.raises(KilledAttempt):
        train_rig.run(reporter, spec=every_four)
    assert sorted(reporter.checkpoints) == [4, 8]
    assert train_rig.run(spec=every_four, resume=train_rig.resume_point(reporter, resume_at)).artifacts == whole


def kills(count: int, seed: int) -> list[tuple[str, int, int]]:
    """(job, steps between its checkpoints, the step after which it is killed), drawn."""
    draw = random.Random(seed)
    names = [name for name in JOBS if name != "compiled"]
    return [(draw.choice(names), draw.randint(1, 4), draw.randint(5, 11)) for _ in range(count)]


@pytest.mark.parametrize(("job", "every", "killed_at"), kills(5, seed=1))
def test_killed_at_any_step(train_rigs: Any, job: str, every: int, killed_at: int) -> None:
    train_rig, whole = train_rigs(job)
    spec = train_rig.spec | {"checkpointing_steps": every}
    reporter = DoomedReporter(at=killed_at)
    with pytest.raises(KilledAttempt):
        train_rig.run(reporter, spec=spec)
    newest = max(reporter.checkpoints)
    assert killed_at - every <= newest <= killed_at
    assert train_rig.run(spec=spec, resume=train_rig.resume_point(reporter, newest)).artifacts == whole


def test_killed_between_two_passes_of_a_step(train_rigs: Any) -> None:
    """Its micro-batches are of different sizes, and cannot be one."""
    train_rig, whole = train_rigs("buckets, repeats and resolutions")
    spec, reporter = train_rig.spec | {"checkpointing_steps": 3}, RecordingReporter()
    passes: Counter[int] = Counter()

    def count(module: torch.nn.Module, _: object) -> None:
        if isinstance(module, UNet2DConditionModel):
            done = max(reporter.metrics, default=0)
            passes[done] += 1
            if done >= 7 and passes[done] == 2:
                raise KilledAttempt

    with register_module_forward_pre_hook(count), pytest.raises(KilledAttempt):
        train_rig.run(reporter, spec=spec)
    assert max(passes) >= 7
    assert max(reporter.checkpoints) >= 6
    resume = train_rig.resume_point(reporter, max(reporter.checkpoints))
    assert train_rig.run(spec=spec, resume=resume).artifacts == whole


def test_every_field_is_in_a_job_or_elsewhere() -> None:
    fields = {name for name, field in TrainSpec.model_fields.items() if not field.exclude}
    aliases = {"optimizer_type": "optimizer", "alpha_mask": "masked_loss", "fp8_base": "base_quantization"}
    named = {aliases.get(name, name) for job in JOBS.values() for name in job}
    assert fields - named - ELSEWHERE.keys() == set()
    assert ELSEWHERE.keys() <= fields - named


def test_checkpoint_times_change_no_byte_of_artifacts_or_checkpoints(train_rigs: Any) -> None:
    """Not even the checkpoints: their bytes are a function of the step."""
    train_rig, whole = train_rigs("bf16")
    one = train_rig.run(
        RecordingReporter(
            agent_requests={3: AgentRequest.CHECKPOINT, 4: AgentRequest.CHECKPOINT, 9: AgentRequest.CHECKPOINT}
        )
    )
    other = train_rig.run(RecordingReporter(agent_requests={9: AgentRequest.CHECKPOINT}))
    assert one.artifacts == other.artifacts == whole
    assert set(one.checkpoint_bytes) == {3, 4, 9, 12}
    assert set(other.checkpoint_bytes) == {9, 12}
    assert one.checkpoint_bytes[9] == other.checkpoint_bytes[9]
    assert one.checkpoint_bytes[12] == other.checkpoint_bytes[12]


def test_resumed_after_the_last_step_only_exports(train_rigs: Any) -> None:
    train_rig, whole = train_rigs("everything")
    first = train_rig.run(RecordingReporter(agent_requests={12: AgentRequest.CHECKPOINT_AND_STOP}))
    assert not first.artifacts
    second = train_rig.run(resume=train_rig.resume_point(first, 12))
    assert second.artifacts == whole
    assert not second.metrics
    assert not second.notices
    assert not second.puts  # no class pictures are drawn for nothing


def test_seed_changes_artifacts(train_rigs: Any) -> None:
    train_rig, whole = train_rigs("bf16")
    other = train_rig.run(spec=train_rig.spec | {"seed": 43})
    for name, content in other.artifacts.items():
        assert content != whole[name]
