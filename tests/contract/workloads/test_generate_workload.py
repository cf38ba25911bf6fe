"""The `generate` kind on the tiny models: whole leases, from parameters to files."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ControlNetModel, StableDiffusionXLImg2ImgPipeline, UNet2DConditionModel
from PIL import Image
from safetensors.torch import save_file
from tests.fixtures.drawing import (
    ReferencePicture,
    asked,
    photo,
    pipeline_of,
    right_half,
    scheduler_of,
    with_mask_channels,
)
from tests.fixtures.picture_leases import ORDER, CountedWorkload, lease, params, sha256_of
from tests.fixtures.single_file import write_single_file
from tests.fixtures.train_rig import RecordingReporter

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel, ModelLocation, load_model
from giornata.diffusion.files.formats import write_lora
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.files.row_lora import read_row_lora
from giornata.diffusion.tiny.tiny_model import tiny_pipeline, tiny_sd15_pipeline
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pictures import PictureFlag
from giornata.protocol.specs import TrainSpec
from giornata.workloads.generate.warm_models import DrawingModel
from giornata.workloads.generate.workload import GenerateWorkload
from giornata.workloads.interface import AgentRequest, Outcome, Stopped


def pixels(reporter: RecordingReporter, number: int = 0) -> np.ndarray:
    path, media_type, _ = reporter.pictures[ORDER, number]
    assert path is not None
    assert media_type == "image/png"
    return np.asarray(Image.open(path)).astype(int)


def loaded(folder: Path) -> BaseModel:
    return load_model(ModelLocation(name=str(folder), key="k"), device="cpu", dtype=torch.float32)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tiny_folder: Path, tiny_sd15_folder: Path) -> Path:
    return tiny_sd15_folder if getattr(request, "param", "sdxl") == "sd15" else tiny_folder


@pytest.mark.parametrize("folder", ["sdxl", "sd15"], indirect=True)
def test_a_picture_alone_has_the_bytes_of_the_pipelines(folder: Path, tmp_path: Path) -> None:
    base, wanted = loaded(folder), ReferencePicture(steps=3)
    theirs = pipeline_of(base, wanted)(**asked(wanted), height=64, width=64).images[0]

    start = lease(tmp_path, [params(folder, negative_prompt="blue")])
    ours = CountedWorkload().draw(start)

    assert (pixels(ours) == np.asarray(theirs)).all()


def test_pictures_of_a_lease_share_their_passes_and_none_is_a_level_off(tiny_folder: Path, tmp_path: Path) -> None:
    each = [
        params(tiny_folder, seed=seed, num_inference_steps=2 + seed % 3, prompt=prompt)
        for seed, prompt in enumerate(["a red circle", "a blue (square:1.3)", "a dog " * 90, "a heart"])
    ]
    counted = CountedWorkload()

    together = counted.draw(lease(tmp_path, each))
    alone = [CountedWorkload().draw(lease(tmp_path, [one])) for one in each]

    assert counted.passes == [8, 8, 4, 2]
    for number, one in enumerate(alone):
        assert np.abs(pixels(together, number) - pixels(one)).max() <= 1


def test_a_lease_that_comes_later_joins_the_rows_at_work(tiny_folder: Path, tmp_path: Path) -> None:
    first = lease(tmp_path, [params(tiny_folder, num_inference_steps=6)])
    second = lease(tmp_path, [params(tiny_folder, seed=8, num_inference_steps=2)])
    reporters, counted = [RecordingReporter(), RecordingReporter()], CountedWorkload()

    table = counted.draw_all((first, reporters[0]), late={4: (second, reporters[1])})

    assert [type(end) for end in table.ends.values()] == [Outcome, Outcome]
    assert sorted(counted.passes) == [2, 2, 2, 2, 4, 4]
    assert all((ORDER, 0) in reporter.pictures for reporter in reporters)


def test_a_pass_without_memory_is_made_in_halves_and_the_pictures_say_so(tiny_folder: Path, tmp_path: Path) -> None:
    def small(rows: int) -> None:
        if rows > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    each = [params(tiny_folder, seed=seed) for seed in range(4)]
    counted = CountedWorkload(before=small)

    drawn = counted.draw(lease(tmp_path, each))

    assert counted.passes == [8, *([4] * 6)]
    assert {flags for _, _, flags in drawn.pictures.values()} == {PictureFlag.OUT_OF_MEMORY_ONCE}


def test_a_row_that_does_not_fit_alone_fails_and_the_workload_goes_on(tiny_folder: Path, tmp_path: Path) -> None:
    full = [True]

    def none(_rows: int) -> None:
        if full[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    counted = CountedWorkload(before=none)
    each = [params(tiny_folder, seed=seed) for seed in range(2)]

    failed = counted.draw(lease(tmp_path, each))
    full[0] = False
    drawn = counted.draw(lease(tmp_path, each))

    assert {reason for reason, _ in failed.failed_pictures.values()} == {Reason.NODE_VRAM}
    assert len(failed.failed_pictures) == 2
    assert len(drawn.pictures) == 2


def test_a_dropped_picture_leaves_and_the_others_go_on(tiny_folder: Path, tmp_path: Path) -> None:
    reporter = RecordingReporter()

    def drop(_rows: int) -> None:
        reporter.dropped.add((ORDER, 1))

    each = [params(tiny_folder, seed=seed) for seed in range(3)]
    counted = CountedWorkload(before=drop)

    counted.draw(lease(tmp_path, each), reporter)

    assert sorted(reporter.pictures) == [(ORDER, 0), (ORDER, 2)]
    assert counted.passes == [6, 4, 4]


class RequestingReporter(RecordingReporter):
    """Wants something after so many passes of the counted."""

    counted: CountedWorkload
    after: int
    wanted: AgentRequest

    def agent_request(self) -> AgentRequest:
        return self.wanted if len(self.counted.passes) >= self.after else AgentRequest.GO_ON


def _requesting(counted: CountedWorkload, after: int, wanted: AgentRequest) -> RequestingReporter:
    reporter = RequestingReporter()
    reporter.counted, reporter.after, reporter.wanted = counted, after, wanted
    return reporter


def test_a_stopped_lease_leaves_at_once_and_its_neighbor_goes_on(tiny_folder: Path, tmp_path: Path) -> None:
    counted = CountedWorkload()
    stopped, other = _requesting(counted, 1, AgentRequest.STOP), RecordingReporter()
    starts = [lease(tmp_path, [params(tiny_folder, seed=seed)]) for seed in range(2)]

    table = counted.draw_all((starts[0], stopped), (starts[1], other))

    assert isinstance(table.ends[starts[0].job], Stopped)
    assert not stopped.pictures
    assert (ORDER, 0) in other.pictures
    assert counted.passes == [4, 2, 2]


def test_a_lease_that_drains_ends_the_rows_that_end_soon_and_begins_no_other(
    tiny_folder: Path, tmp_path: Path
) -> None:
    ticks = iter(range(10_000))
    counted = CountedWorkload(rows=2, clock=lambda: float(next(ticks)))  # each pass takes a second
    reporter = _requesting(counted, 1, AgentRequest.CHECKPOINT_AND_STOP)
    each = [params(tiny_folder, seed=seed, num_inference_steps=steps) for seed, steps in enumerate((5, 30, 5))]
    start = lease(tmp_path, each)

    table = counted.draw_all((start, reporter))

    assert isinstance(table.ends[start.job], Stopped)
    assert sorted(reporter.pictures) == [(ORDER, 0)]


def test_mask_of_another_size_fails_its_picture_alone(tiny_folder: Path, tmp_path: Path) -> None:
    files = [tmp_path / "photo.png", tmp_path / "mask.png"]
    photo().save(files[0])
    right_half().resize((32, 32)).save(files[1])
    wanted = params(tiny_folder, image=sha256_of(files[0]), mask=sha256_of(files[1]))

    told = CountedWorkload().draw(
        lease(tmp_path, [wanted, params(tiny_folder)], [("picture", each) for each in files])
    )

    assert list(told.pictures) == [(ORDER, 1)]
    reason, message = told.failed_pictures[ORDER, 0]
    assert (reason, "the mask has 32×32 pixels, and its picture has 64×64" in message) == (Reason.BAD_DATA, True)


def test_inpainting_spares_the_bytes_outside_of_the_mask(tiny_folder: Path, tmp_path: Path) -> None:
    files = [tmp_path / "photo.png", tmp_path / "mask.png"]
    photo().save(files[0])
    right_half().save(files[1])
    wanted = params(tiny_folder, image=sha256_of(files[0]), mask=sha256_of(files[1]))

    drawn = pixels(CountedWorkload().draw(lease(tmp_path, [wanted], [("picture", file) for file in files])))

    original = np.asarray(photo())
    assert (drawn[:, :32] == original[:, :32]).all()
    assert (drawn[:, 32:] != original[:, 32:]).any()


@pytest.mark.parametrize("in_one_file", [False, True])
def test_a_model_that_was_made_to_inpaint_draws_the_pictures_with_a_mask(
    tiny_sd15_folder: Path, tmp_path: Path, in_one_file: bool
) -> None:
    files = [tmp_path / "photo.png", tmp_path / "mask.png"]
    photo().save(files[0])
    right_half().save(files[1])
    made_for_it, wanted = with_mask_channels(loaded(tiny_sd15_folder)), ReferencePicture(steps=3, strength=1.0)
    theirs = pipeline_of(made_for_it, wanted, "Inpaint")
    image = theirs(**asked(wanted), image=photo(), mask_image=right_half(), strength=1.0, height=64, width=64).images[
        0
    ]
    given = {"image": sha256_of(files[0]), "mask": sha256_of(files[1]), "strength": 1.0, "negative_prompt": "blue"}
    inputs, layouts = [("picture", file) for file in files], tmp_path / "layouts"
    shutil.copytree(tiny_sd15_folder, layouts / "sd15", ignore=shutil.ignore_patterns("*.safetensors"))
    theirs.save_pretrained(tmp_path / "model", safe_serialization=True)
    model: dict[str, Any] = {"name": str(tmp_path / "model")}
    if in_one_file:
        inputs.append(("base", write_single_file(tmp_path / "model.safetensors", theirs)))
        model = {"name": "toy", "sha256": sha256_of(inputs[-1][1])}
    workload, told = GenerateWorkload(device="cpu", load=partial(load_model, layouts=layouts)), RecordingReporter()

    each = [params(tiny_sd15_folder, **given) | {"model": model}, params(tiny_sd15_folder) | {"model": model}]
    workload.run(lease(tmp_path, each, inputs), told)

    assert (pixels(told)[:, 32:] == np.asarray(image)[:, 32:]).all()
    assert "made to inpaint" in told.failed_pictures[ORDER, 1][1]


def test_a_single_file_without_a_suffix_draws_what_its_folder_draws(tiny_sd15_folder: Path, tmp_path: Path) -> None:
    file = write_single_file(tmp_path / "model.safetensors", tiny_sd15_pipeline())
    layouts = tmp_path / "layouts"
    shutil.copytree(tiny_sd15_folder, layouts / "sd15", ignore=shutil.ignore_patterns("*.safetensors"))
    workload = GenerateWorkload(device="cpu", load=partial(load_model, layouts=layouts))
    start = lease(
        tmp_path,
        [params(tiny_sd15_folder) | {"model": {"name": "toy", "sha256": sha256_of(file)}}],
        [("base", file)],
    )

    drawn = RecordingReporter()
    workload.run(start, drawn)

    assert (pixels(drawn) == pixels(CountedWorkload().draw(lease(tmp_path, [params(tiny_sd15_folder)])))).all()


def test_generate_with_another_base_replaces_the_warm_one(tiny_folder: Path, tmp_path: Path) -> None:
    other = tiny_pipeline()
    with torch.no_grad():
        other.unet.conv_out.weight.mul_(0.5)
    other.save_pretrained(tmp_path / "other", safe_serialization=True)
    counted = CountedWorkload()

    drawn = [pixels(counted.draw(lease(tmp_path, [params(each)]))) for each in (tiny_folder, tmp_path / "other")]

    fresh = pixels(CountedWorkload().draw(lease(tmp_path, [params(tmp_path / "other")])))
    assert (drawn[1] == fresh).all()
    assert (drawn[0] != drawn[1]).any()


def test_rows_with_loras_of_their_own_are_as_they_would_be_alone(tiny_folder: Path, tmp_path: Path) -> None:
    base = loaded(tiny_folder)
    files = [_lora_file(base, tmp_path / f"{seed}.safetensors", seed=seed) for seed in range(2)]
    uses = [{"name": file.name, "sha256": sha256_of(file), "weight": 0.8} for file in files]
    each = [params(tiny_folder, loras=loras) for loras in (uses[:1], uses[1:], uses, [])]
    given = [("lora", file) for file in files]

    together = CountedWorkload().draw(lease(tmp_path, each, given))

    drawn = [pixels(together, number) for number in range(4)]
    for one, other in zip(each, drawn, strict=True):
        assert np.abs(pixels(CountedWorkload().draw(lease(tmp_path, [one], given))) - other).max() <= 1
    assert all((drawn[place] != drawn[3]).any() for place in range(3))


def test_loading_the_loras_of_a_batch_drops_none_that_the_batch_needs(tiny_folder: Path, tmp_path: Path) -> None:
    base = loaded(tiny_folder)
    files = [_lora_file(base, tmp_path / f"{seed}.safetensors", seed=seed) for seed in range(3)]
    loras = [read_row_lora(file, base, where="loras.0") for file in files]
    model = DrawingModel(base, loras_on_device=2)

    model.show(loras[:2])
    model.show([loras[2], loras[0]])  # the first is the least recently used
    assert set(model.adapters.keys) == {loras[0].sha256, loras[2].sha256}
    model.show(loras)
    assert set(model.adapters.keys) == {lora.sha256 for lora in loras}


def test_loras_of_the_next_batch_stay_while_those_of_the_last_one_are_held(tiny_folder: Path, tmp_path: Path) -> None:
    base = loaded(tiny_folder)
    files = [_lora_file(base, tmp_path / f"{seed}.safetensors", seed=seed) for seed in range(4)]
    loras = [read_row_lora(file, base, where="loras.0") for file in files]
    model = DrawingModel(base, loras_on_device=2)

    for wanted in (loras[:2], loras[2:]):
        model.show(wanted)
        with model.adapters.rows([{lora.sha256: 1.0} for lora in wanted]):
            assert {lora.sha256 for lora in wanted} <= set(model.adapters.keys)


def _lora_file(base: BaseModel, path: Path, *, seed: int) -> Path:
    spec = TrainSpec(model="owner/name", dataset="ds_1", seed=seed, rank=2, resolution=64)
    draw = torch.Generator().manual_seed(seed)
    with add_adapters(base, spec) as adapters:
        named = adapters.tensors().items()
        tensors = {name: value + 0.1 * torch.randn(value.shape, generator=draw) for name, value in named}
    facts = facts_of(spec, step=1, layers_per_block=1, family=base.family)
    return write_lora("kohya", path, tensors, facts, dtype="float32")


def test_picture_with_all_options_is_drawn_in_one_lease_with_a_plain_one(tiny_folder: Path, tmp_path: Path) -> None:
    control = tmp_path / "control.png"
    photo().save(control)
    net = _controlnet_file(tiny_folder, tmp_path / "net.safetensors")
    full: dict[str, Any] = {
        "controlnets": [{"name": "edges", "sha256": sha256_of(net), "image": sha256_of(control)}],
        "refiner": {"model": {"name": str(tiny_folder)}, "switch_at": 0.5},
        "high_resolution": {"width": 96, "height": 96},
        "scheduler": "DPM++ 2M Karras",
    }
    start = lease(
        tmp_path, [params(tiny_folder, **full), params(tiny_folder)], [("controlnet", net), ("picture", control)]
    )

    drawn = CountedWorkload().draw(start)

    assert pixels(drawn, 0).shape == (96, 96, 3)
    plain = pixels(CountedWorkload().draw(lease(tmp_path, [params(tiny_folder)])))
    assert np.abs(pixels(drawn, 1) - plain).max() <= 1


def _controlnet_file(folder: Path, path: Path) -> Path:
    net = ControlNetModel.from_unet(loaded(folder).unet)
    save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, path)
    return path


def test_a_picture_that_sdxls_refiner_goes_on_with_has_the_bytes_of_the_pipelines(
    tiny_folder: Path, tmp_path: Path
) -> None:
    base, share = loaded(tiny_folder), 0.5
    refiner = _refiner(base)
    refiner.save_pretrained(tmp_path / "refiner", safe_serialization=True)
    wanted = ReferencePicture(steps=6)
    first = pipeline_of(base, wanted)(
        **asked(wanted), height=64, width=64, denoising_end=share, output_type="latent"
    ).images
    theirs = refiner(**asked(wanted), image=first, denoising_start=share).images[0]
    second = {"refiner": {"model": {"name": str(tmp_path / "refiner")}, "switch_at": share}}

    ours = CountedWorkload().draw(
        lease(tmp_path, [params(tiny_folder, negative_prompt="blue", num_inference_steps=6, **second)])
    )

    assert (pixels(ours) == np.asarray(theirs)).all()


def test_a_refiner_that_takes_over_at_the_very_end_changes_nothing(tiny_folder: Path, tmp_path: Path) -> None:
    late = {"refiner": {"model": {"name": str(tiny_folder)}, "switch_at": 1.0}}
    counted = CountedWorkload()

    drawn = counted.draw(lease(tmp_path, [params(tiny_folder, **late), params(tiny_folder)]))

    assert (pixels(drawn, 0) == pixels(drawn, 1)).all()
    assert counted.passes == [4, 4, 4]


def _refiner(base: BaseModel) -> StableDiffusionXLImg2ImgPipeline:
    """A tiny model of the refiner's architecture: the second text encoder alone, and a score in place of the size."""
    hidden = base.text_encoders[1].config.projection_dim
    width = base.unet.config.addition_time_embed_dim
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        unet = UNet2DConditionModel.from_config(
            base.unet.config,
            cross_attention_dim=hidden,
            projection_class_embeddings_input_dim=5 * width + hidden,
        )
    pipeline = StableDiffusionXLImg2ImgPipeline(
        vae=base.vae,
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=base.text_encoders[1],
        tokenizer_2=base.tokenizers[1],
        unet=unet.eval(),
        scheduler=scheduler_of(base, ReferencePicture()),
        requires_aesthetics_score=True,
        force_zeros_for_empty_prompt=False,
        add_watermarker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_results_are_written_in_the_format_that_was_asked_for(tiny_folder: Path, tmp_path: Path) -> None:
    formats = ("png", "jpeg", "webp")
    told = CountedWorkload().draw(lease(tmp_path, [params(tiny_folder, image_format=each) for each in formats]))

    for number, each in enumerate(formats):
        path, media_type, _ = told.pictures[ORDER, number]
        assert path is not None
        assert media_type == f"image/{each}"
        assert Image.open(path).format == each.upper()


def test_the_base_stays_warm_and_is_told(tiny_folder: Path, tmp_path: Path) -> None:
    counted = CountedWorkload()
    counted.draw(lease(tmp_path, [params(tiny_folder)]))

    [held] = counted.workload.held()

    assert len(held) == 32
