"""Pictures of a job: what users of the files will see, at no cost to the weights, and never a reason to fail.

Held to diffusers' own pipelines with the files loaded as users load them.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import EulerDiscreteScheduler
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load, save_file
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.adapter.batched_lora import adapters_off
from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.adapter.slots import AdapterSlots
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.base.weights_digest import base_sha256
from giornata.diffusion.families import SD15, SDXL, Family
from giornata.diffusion.sampling.samples import PURPOSE, PromptImages, draw_samples, initial_noise
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import ResumePoint
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import AgentRequest, Stopped
from giornata.workloads.train.workload import TrainWorkload

PROMPTS = ("a photo of a sks toy", "a toy")
FIELDS: dict[str, Any] = {"sample_prompts": PROMPTS, "sample_steps": 2, "max_train_steps": 4}
LORA_FILES = ("lora-kohya.safetensors", "pytorch_lora_weights.safetensors")


def rig_of(folder: Path, root: Path, **changes: Any) -> TrainRig:
    spec = spec_for(folder, **{**FIELDS, **changes})
    return TrainRig(root=root, spec=spec, inputs=draw_pictures(root / "in", 2))


@pytest.fixture(scope="module")
def plain(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainRig, RecordingReporter]:
    """A job, and what it gives when nothing disturbs it."""
    train_rig = rig_of(tiny_folder, tmp_path_factory.mktemp("plain"))
    return train_rig, train_rig.run()


class WorkloadWithBase(TrainWorkload):
    """Keeps the base within reach of the test."""

    def __init__(self, **options: Any) -> None:
        self.bases: list[BaseModel] = []

        def load_and_keep(*arguments: Any, **named: Any) -> BaseModel:
            self.bases.append(load_base(*arguments, **named))
            return self.bases[-1]

        super().__init__(device="cpu", load=load_and_keep, **options)


class At(RecordingReporter):
    """Requests something while pictures are drawn, when this many are done."""

    def __init__(self, done: int, agent_request: AgentRequest) -> None:
        super().__init__()
        self.done, self.requested = done, agent_request

    def agent_request(self) -> AgentRequest:
        name, done, _ = self.phases[-1]
        return self.requested if (name, done) == ("sampling", self.done) else super().agent_request()


def drawn_by_diffusers(
    folder: Path, family: Family, spec: TrainSpec, *, files: Path | None, settings: dict[str, Any] | None = None
) -> list[np.ndarray]:
    """The prompts, by the family's pipeline loaded from the folder, with the LoRA file if there is one."""
    pipeline = family.load_pipeline(folder, dtype=torch.float32)
    pipeline.scheduler = EulerDiscreteScheduler.from_config(pipeline.scheduler.config, **(settings or {}))
    pipeline.set_progress_bar_config(disable=True)
    if files is not None:
        pipeline.load_lora_weights(str(files), weight_name=LORA_FILES[1])
    base = load_base(spec, device="cpu", dtype=torch.float32)
    pictures = []
    for number, prompt in enumerate(spec.sample_prompts):
        noise_BCHW = initial_noise(base, int(spec.seed or 0), PURPOSE, number, side_px=spec.resolution)
        made = pipeline(
            prompt=prompt,
            latents=noise_BCHW,
            height=spec.resolution,
            width=spec.resolution,
            num_inference_steps=spec.sample_steps,
            guidance_scale=family.guidance_scale,
        )
        pictures.append(np.asarray(made.images[0], dtype=np.int16))
    return pictures


def cells(sheet: bytes, folder: Path, rows: int) -> list[list[np.ndarray]]:
    """The pictures on a sheet as they were pasted: 128 px cells of pictures of 64 px, read at every second pixel."""
    path = folder / "sheet.png"
    path.write_bytes(sheet)
    picture = np.asarray(Image.open(path), dtype=np.int16)
    lefts, tops = (238, 238 + 128 + 30), [144 + row * 150 for row in range(rows)]
    return [[picture[top : top + 128 : 2, left : left + 128 : 2] for left in lefts] for top in tops]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("slots", {}),
        ("peft", {"use_dora": True, "train_text_encoder": True, "text_encoder_lr": 1e-2}),
        ("an average", {"use_ema": True, "ema_decay": 0.99, "max_train_steps": 12}),
        ("velocities", {"prediction_type": "v_prediction"}),
        ("Stable Diffusion 1.5", {}),
    ],
)
def test_the_sheet_shows_what_users_of_the_file_will_see(
    tiny_folder: Path, tiny_sd15_folder: Path, tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    family = SD15 if name.startswith("Stable") else SDXL
    folder = tiny_sd15_folder if family is SD15 else tiny_folder
    train_rig = rig_of(folder, tmp_path, **changes)
    reporter = train_rig.run()
    assert not reporter.notices
    spec = TrainSpec.model_validate(train_rig.spec)
    (tmp_path / LORA_FILES[1]).write_bytes(reporter.artifacts[LORA_FILES[1]])
    settings = {"prediction_type": spec.prediction_type} if spec.prediction_type else {}
    plain = drawn_by_diffusers(folder, family, spec, files=None)
    learned = drawn_by_diffusers(folder, family, spec, files=tmp_path, settings=settings)
    shown = cells(reporter.artifacts["samples.png"], tmp_path, rows=2)
    for row, one, other in zip(shown, plain, learned, strict=True):
        assert np.abs(row[0] - one).max() <= 1
        assert np.abs(row[1] - other).max() <= 2
        assert np.abs(one - other).mean() > 1  # or nothing would be shown


def test_the_weights_are_those_of_a_job_without_pictures(plain: tuple[TrainRig, RecordingReporter]) -> None:
    train_rig, one = plain
    other = train_rig.run(
        spec={name: value for name, value in train_rig.spec.items() if not name.startswith("sample_")}
    )
    for name in LORA_FILES:
        assert one.artifacts[name] == other.artifacts[name]
    assert "samples.png" not in other.artifacts
    assert "samples.png" not in other.artifacts["README.md"].decode()
    card = one.artifacts["README.md"].decode()
    assert "](samples.png)" in card and "- `a photo of a sks toy`\n- `a toy`" in card


@pytest.mark.parametrize("changes", [{}, {"use_dora": True, "mixed_precision": "bf16", "train_text_encoder": True}])
def test_the_warm_base_is_as_it_was(tiny_folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    train_rig, workload = rig_of(tiny_folder, tmp_path, **changes), WorkloadWithBase()
    first = train_rig.run(workload=workload)
    (base,) = workload.bases
    assert "samples.png" in first.artifacts
    modules = (base.unet, base.vae, *base.text_encoders)
    fresh = load_base(TrainSpec.model_validate(train_rig.spec), device="cpu", dtype=base.dtype)
    assert base_sha256(base) == base_sha256(fresh)
    for warm, new in zip(modules, (fresh.unet, fresh.vae, *fresh.text_encoders), strict=True):
        assert [(name, type(each), each.training) for name, each in warm.named_modules()] == [
            (name, type(each), each.training) for name, each in new.named_modules()
        ]
        assert not any(parameter.requires_grad for parameter in warm.parameters())
        assert {each.dtype for each in warm.parameters()} == {each.dtype for each in new.parameters()}
    assert dict(base.noise_scheduler.config) == dict(fresh.noise_scheduler.config)
    assert train_rig.run(workload=workload).artifacts == first.artifacts


def test_while_pictures_are_drawn_the_adapter_is_only_lent(tiny_folder: Path) -> None:
    """Another result than the weights themselves, as averages are; on peft's layers and on slots."""
    spec = TrainSpec.model_validate(spec_for(tiny_folder, **{**FIELDS, "sample_steps": 1}))
    base = load_base(spec, device="cpu", dtype=torch.float32)
    found: list[tuple[PromptImages, ...]] = []
    with add_adapters(base, spec) as adapters:
        before = adapters.tensors()
        result = {name: torch.ones_like(tensor) * 0.05 for name, tensor in before.items()}
        found.append(draw_samples(base, spec, adapters, result, tick=lambda done, total: None))
        assert all(torch.equal(adapters.tensors()[name], before[name]) for name in before)
        assert all(parameter.requires_grad for parameter in adapters.parameters.values())
    slots = AdapterSlots(base, spec, count=2, rank=4)
    with slots:
        slots.assign(0, spec)
        adapters = slots.assign(1, spec).adapters
        before = adapters.tensors()
        slots.set_width(2)
        with slots.on(), adapters_off((base.unet,)):
            found.append(draw_samples(base, spec, adapters, result, tick=lambda done, total: None))
        assert all(torch.equal(adapters.tensors()[name], before[name]) for name in before)
    for one, other in zip(*found, strict=True):
        assert np.array_equal(np.asarray(one.base), np.asarray(other.base))
        difference = np.asarray(one.lora, dtype=np.int16) - np.asarray(other.lora, dtype=np.int16)
        assert np.abs(difference).max() <= 1
        assert not np.array_equal(np.asarray(one.base), np.asarray(one.lora))


@pytest.mark.parametrize("agent_request", [AgentRequest.STOP, AgentRequest.CHECKPOINT_AND_STOP])
@pytest.mark.parametrize("done", [0, 3])
def test_a_stop_among_the_pictures_leaves_no_seam(
    plain: tuple[TrainRig, RecordingReporter], agent_request: AgentRequest, done: int
) -> None:
    train_rig, whole = plain
    first = train_rig.run(At(done, agent_request))
    assert first.lines == ["stopped at 4"]
    assert not {"samples.png", "README.md"} & set(first.artifacts)
    again = train_rig.run(resume=train_rig.resume_point(first, 4))
    assert not again.metrics
    assert again.artifacts == whole.artifacts


class Breaking(RecordingReporter):
    """Something breaks in the middle of the third picture."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def agent_request(self) -> AgentRequest:
        if self.phases[-1][:2] == ("sampling", 2):
            raise self.error
        return super().agent_request()


def test_out_of_memory_costs_the_pictures_and_nothing_else(plain: tuple[TrainRig, RecordingReporter]) -> None:
    (train_rig, whole), workload = plain, WorkloadWithBase()
    reporter = train_rig.run(Breaking(torch.OutOfMemoryError("CUDA out of memory.")), workload=workload)
    assert reporter.notices == [("samples-not-drawn", {"message": "OutOfMemoryError: CUDA out of memory."})]
    assert set(reporter.artifacts) == set(whole.artifacts) - {"samples.png"}
    assert "samples.png" not in reporter.artifacts["README.md"].decode()
    for name in LORA_FILES:
        assert reporter.artifacts[name] == whole.artifacts[name]
    assert train_rig.run(workload=workload).artifacts == whole.artifacts  # on the same base
    assert len(workload.bases) == 1


def test_a_broken_device_is_not_taken_for_a_missing_picture(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkloadFailed) as caught:
        rig_of(tiny_folder, tmp_path).run(Breaking(RuntimeError("CUDA error: an illegal memory access")))
    assert caught.value.reason is Reason.NODE_DRIVER


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_computed(tiny_folder: Path, tmp_path: Path) -> None:
    reporter = RecordingReporter()
    with pytest.raises(WorkloadFailed) as caught:
        rig_of(tiny_folder, tmp_path, sample_prompts=["a toy", "toy " * 90]).run(reporter)
    assert [fault.where for fault in caught.value.faults] == ["spec.sample_prompts.1"]
    assert [name for name, _, _ in reporter.phases] == ["loading"]


def test_new_words_are_said_where_they_were_learned(tiny_folder: Path, tmp_path: Path) -> None:
    """With the LoRA a word is its tokens; to the base model it is a word like any other."""
    fields = {"train_text_encoder_ti": True, "instance_prompt": "a photo of TOK", "text_encoder_lr": 1e-1}
    shown = []
    for number, prompt in enumerate(("a photo of TOK", "a photo of <s0><s1>")):
        reporter = rig_of(tiny_folder, tmp_path / str(number), **fields, sample_prompts=[prompt]).run()
        assert not reporter.notices
        shown += cells(reporter.artifacts["samples.png"], tmp_path, rows=1)
    (word_plain, word_learned), (_, tokens_learned) = shown
    assert np.array_equal(word_learned, tokens_learned)
    assert not np.array_equal(word_plain, word_learned)


def test_each_denoising_step_is_a_sign_of_life(plain: tuple[TrainRig, RecordingReporter]) -> None:
    """An engine that says nothing for ten minutes is ended."""
    drawn = [(done, total) for name, done, total in plain[1].phases if name == "sampling"]
    assert [drawn.count((done, 4)) for done in range(5)] == [3, 3, 3, 3, 1]  # the beginning and two steps of each


def test_checkpoint_request_does_not_stop_drawing_of_samples(tiny_folder: Path, tmp_path: Path) -> None:
    reporter = At(1, AgentRequest.CHECKPOINT)
    try:
        rig_of(tiny_folder, tmp_path).run(reporter)
    except Stopped:
        pytest.fail("a checkpoint was requested, and no stop")
    assert "samples.png" in reporter.artifacts


# ---- in the middle of training

EVERY_TWO = {"validation_steps": 2, "max_train_steps": 5}
SHEETS = ["samples-00000002.png", "samples-00000004.png"]
BY_STEP = "samples-by-step.png"
Undisturbed = Callable[[str], tuple[TrainRig, RecordingReporter]]
KINDS_OF_JOB: dict[str, dict[str, Any]] = {
    "slots": {},
    "peft": {"use_dora": True, "train_text_encoder": True, "text_encoder_lr": 1e-2, "mixed_precision": "bf16"},
    "an average": {"use_ema": True, "ema_decay": 0.5},
    "schedule-free": {"optimizer": "adamw_schedule_free"},
    "tokens": {"train_text_encoder_ti": True, "instance_prompt": "a photo of TOK", "text_encoder_lr": 1e-1},
    "less memory": {"gradient_checkpointing": "selective", "gradient_accumulation_steps": 3},
}


@pytest.fixture(scope="module")
def undisturbed(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A job of a kind, and what it gives when nothing stops it."""
    root = tmp_path_factory.mktemp("whole")

    @cache
    def job(kind: str) -> tuple[TrainRig, RecordingReporter]:
        train_rig = rig_of(tiny_folder, root / kind, **EVERY_TWO, **KINDS_OF_JOB[kind])
        return train_rig, train_rig.run()

    return job


@pytest.mark.parametrize("kind", KINDS_OF_JOB)
def test_pictures_in_between_are_those_of_a_shorter_job_and_change_nothing(
    undisturbed: Undisturbed, tmp_path: Path, kind: str
) -> None:
    train_rig, reporter = undisturbed(kind)
    assert not reporter.notices
    assert [name for name in reporter.artifacts if name.startswith("samples-")] == [*SHEETS, BY_STEP]
    without = train_rig.run(spec=without_validation(train_rig.spec))
    assert {name: reporter.artifacts[name] for name in without.artifacts} == without.artifacts
    assert tensors_of(reporter, 5) == tensors_of(without, 5)
    assert BY_STEP not in without.artifacts
    shorter = train_rig.run(spec=without_validation(train_rig.spec) | {"max_train_steps": 2})
    shown = learned_cells(reporter.artifacts[SHEETS[0]], tmp_path, rows=2)
    for mine, (_, theirs) in zip(shown, cells(shorter.artifacts["samples.png"], tmp_path, rows=2), strict=True):
        assert np.array_equal(mine, theirs)
    assert reporter.artifacts[SHEETS[0]] != reporter.artifacts[SHEETS[1]]


@pytest.mark.parametrize(
    ("kind", "stop_at"),
    [("slots", 1), ("slots", 2), ("peft", 2), ("peft", 3), ("an average", 4)],
)
def test_stopped_and_resumed_with_pictures_in_between(undisturbed: Undisturbed, kind: str, stop_at: int) -> None:
    """Every picture is drawn by one attempt or the other, and has the same bytes; also where all stand side by
    side. The stops are before all sheets, where one is due, between two, and where the last is due."""
    train_rig, whole = undisturbed(kind)
    first = train_rig.run(RecordingReporter(agent_requests={stop_at: AgentRequest.CHECKPOINT_AND_STOP}))
    assert first.lines[-1] == f"stopped at {stop_at}"
    last = train_rig.run(resume=train_rig.resume_point(first, stop_at))
    assert first.artifacts | last.artifacts == whole.artifacts
    assert {name for name in SHEETS if int(name[8:16]) >= stop_at} <= last.artifacts.keys()
    assert {name for name in SHEETS if int(name[8:16]) < stop_at}.isdisjoint(last.artifacts)
    assert BY_STEP in last.artifacts


@pytest.mark.parametrize(
    ("agent_request", "line"),
    [(AgentRequest.STOP, "stopped at None"), (AgentRequest.CHECKPOINT_AND_STOP, "stopped at 2")],
)
def test_a_stop_while_pictures_are_drawn_in_between(
    undisturbed: Undisturbed, agent_request: AgentRequest, line: str
) -> None:
    train_rig, whole = undisturbed("an average")
    first = train_rig.run(At(1, agent_request))
    assert first.lines == [line]
    assert not first.artifacts
    resume = train_rig.resume_point(first, 2) if first.checkpoint_bytes else None
    assert train_rig.run(resume=resume).artifacts == whole.artifacts


class OneRequestAt(At):
    """The same, only once; and keeps of which steps it was told of checkpoints."""

    def __init__(self, done: int, agent_request: AgentRequest) -> None:
        super().__init__(done, agent_request)
        self.told: list[int] = []

    def checkpoint(self, step: int, path: Path, cost_s: float) -> None:
        super().checkpoint(step, path, cost_s)
        self.told.append(step)

    def agent_request(self) -> AgentRequest:
        agent_request = super().agent_request()
        if agent_request is self.requested:
            self.done = -1
        return agent_request


@pytest.mark.parametrize(("every", "told"), [(1000, [2, 5]), (2, [2, 4, 5])])
def test_a_checkpoint_requested_while_pictures_are_drawn_is_of_the_weights(
    undisturbed: Undisturbed, every: int, told: list[int]
) -> None:
    """They are lent to the average meanwhile. One that is there is not written again."""
    train_rig, whole = undisturbed("an average")
    spec = train_rig.spec | {"checkpointing_steps": every}
    reporter = OneRequestAt(1, AgentRequest.CHECKPOINT)
    train_rig.run(reporter, spec=spec)
    assert reporter.artifacts == whole.artifacts
    assert reporter.told == told
    assert train_rig.run(spec=spec, resume=train_rig.resume_point(reporter, 2)).artifacts == whole.artifacts


def test_out_of_memory_in_between_costs_one_sheet(undisturbed: Undisturbed) -> None:
    train_rig, whole = undisturbed("slots")
    reporter = train_rig.run(BreakingOnce(torch.OutOfMemoryError("CUDA out of memory.")))
    assert reporter.notices == [("samples-not-drawn", {"message": "OutOfMemoryError: CUDA out of memory."})]
    left, found = dict(whole.artifacts), dict(reporter.artifacts)
    assert left.pop(SHEETS[0])
    assert left.pop(BY_STEP) != found.pop(BY_STEP), "a column of it is empty"
    assert found == left


class BreakingOnce(Breaking):
    """In the middle of the first sheet."""

    def agent_request(self) -> AgentRequest:
        if self.phases[-1][:2] == ("sampling", 1) and SHEETS[0] not in self.artifacts and not self.notices:
            raise self.error
        return RecordingReporter.agent_request(self)


@pytest.mark.parametrize("kind", ["slots", "peft", "an average"])
def test_all_steps_stand_beside_each_other(undisturbed: Undisturbed, tmp_path: Path, kind: str) -> None:
    """The base model's pictures, those of each step's own sheet, and those of the end."""
    _, whole = undisturbed(kind)
    path = tmp_path / "by-step.png"
    path.write_bytes(whole.artifacts[BY_STEP])
    picture = np.asarray(Image.open(path), dtype=np.int16)
    ends = cells(whole.artifacts["samples.png"], tmp_path, rows=2)
    between = [learned_cells(whole.artifacts[name], tmp_path, rows=2) for name in SHEETS]
    for row in range(2):
        wanted = [ends[row][0], between[0][row], between[1][row], ends[row][1]]
        for column, each in enumerate(wanted):
            left, top = 238 + column * 134, 144 + row * 150
            assert np.array_equal(picture[top : top + 128 : 2, left : left + 128 : 2], each), (row, column)


def test_a_checkpoint_of_a_version_that_kept_no_pictures_goes_on(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """The columns before it stay empty."""
    train_rig, whole = undisturbed("slots")
    first = train_rig.run(RecordingReporter(agent_requests={3: AgentRequest.CHECKPOINT_AND_STOP}))
    old = tmp_path / "old.safetensors"
    old.write_bytes(first.checkpoint_bytes[3])
    with safe_open(old, framework="pt") as opened:
        metadata = opened.metadata()
    save_file({name: each for name, each in load(old.read_bytes()).items() if name != "log.samples"}, old, metadata)
    last = train_rig.run(resume=ResumePoint(step=3, path=old))
    assert last.artifacts[BY_STEP] != whole.artifacts[BY_STEP]
    assert last.artifacts["samples.png"] == whole.artifacts["samples.png"]


def without_validation(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name != "validation_steps"}


def learned_cells(sheet: bytes, folder: Path, rows: int) -> list[np.ndarray]:
    """Of a sheet that has one column."""
    path = folder / "step-sheet.png"
    path.write_bytes(sheet)
    picture = np.asarray(Image.open(path), dtype=np.int16)
    return [picture[144 + row * 150 : 272 + row * 150 : 2, 238:366:2] for row in range(rows)]


def tensors_of(reporter: RecordingReporter, step: int) -> dict[str, bytes]:
    """What a checkpoint has behind its header, which names the whole spec, but for small pictures."""
    found = load(reporter.checkpoint_bytes[step])
    return {name: tensor.numpy().tobytes() for name, tensor in found.items() if name != "log.samples"}


def test_a_name_is_in_front_of_every_file_and_in_none_of_their_bytes(tiny_folder: Path, tmp_path: Path) -> None:
    changes = {"validation_steps": 2, "max_train_steps": 4, "checkpointing_steps": 2, "train_text_encoder_ti": True}
    changes |= {"instance_prompt": "a photo of a TOK toy"}
    train_rig = rig_of(tiny_folder, tmp_path, **changes)
    plain, named = train_rig.run(), train_rig.run(spec={**train_rig.spec, "output_name": "my dog"})
    names = {
        "lora-kohya.safetensors": "my dog.safetensors",
        "pytorch_lora_weights.safetensors": "my dog-pytorch_lora_weights.safetensors",
        "embeddings.safetensors": "my dog-embeddings.safetensors",
        "samples.png": "my dog-samples.png",
        "samples-00000002.png": "my dog-samples-00000002.png",
        "samples-by-step.png": "my dog-samples-by-step.png",
    }
    assert {*plain.artifacts} == {*names, "README.md"}
    assert {*named.artifacts} == {*names.values(), "README.md"}
    assert all(named.artifacts[name] == plain.artifacts[before] for before, name in names.items())
    assert named.checkpoint_bytes == plain.checkpoint_bytes
    card = named.artifacts["README.md"].decode()
    assert all(f'"{name}"' in card or f"`{name}`" in card for name in list(names.values())[:2])
    assert "](my%20dog-samples.png)" in card and "<lora:my dog:1>" in card
    # a job whose checkpoint is of before it had a name goes on from it, and under another name too
    assert (
        train_rig.run(resume=train_rig.resume_point(plain, 2), spec={**train_rig.spec, "output_name": "x"}).artifacts[
            "x.safetensors"
        ]
        == plain.artifacts["lora-kohya.safetensors"]
    )
