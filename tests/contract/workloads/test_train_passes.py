"""What is put through the UNet at once is a matter of memory: the result is the same up to rounding."""

from pathlib import Path

import pytest
import torch
from tests.fixtures.train_rig import draw_pictures, spec_for

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.optim.objective import Objective
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.inputs.encoding import cache_inputs
from giornata.workloads.train.inputs.sample_set import load_samples
from giornata.workloads.train.inputs.sampling_plan import assemble
from giornata.workloads.train.steps import PassFeed, Stepper, optimizer_of


@pytest.fixture(scope="module")
def base(tiny_folder: Path) -> BaseModel:
    spec = TrainSpec.model_validate(spec_for(tiny_folder))
    return load_base(spec, device="cpu", dtype=torch.float32)


def trained(
    base: BaseModel, folder: Path, tiny_folder: Path, rows: int | None
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of three steps of 2 x 3 pictures, as many class pictures beside them."""
    fields = {"train_batch_size": 2, "gradient_accumulation_steps": 3, "learning_rate": 1e-3}
    prior = {"with_prior_preservation": True, "class_prompt": "a toy", "class_dataset": "ds_2"}
    spec = TrainSpec.model_validate(spec_for(tiny_folder, max_train_steps=3, **fields, **prior))
    inputs = draw_pictures(folder, 5) + draw_pictures(folder, 4, first=50, role="class")
    instances, classes = load_samples(inputs, spec)
    assert classes is not None
    cached_inputs = cache_inputs(
        base, spec, (instances, classes), seed=7, first_step=0, tick=lambda done, total: None
    )
    feed = PassFeed(
        cached_inputs, base.vae.config, first_step=0, end_step=3, rows=rows, pinned=False, clock=lambda: 0.0
    )
    with add_adapters(base, spec) as adapters, feed:
        stepper = Stepper(
            base=base,
            spec=spec,
            learning=adapters.learning,
            objective=Objective.of(spec, base.noise_scheduler, prediction_type="epsilon"),
            embeddings=cached_inputs.embeddings,
            optimizer=optimizer_of(adapters, spec),
        )
        losses = [float(stepper.step(step, feed)[0]) for step in range(3)]
        return losses, adapters.tensors()


BUCKETS = {"enable_bucket": True, "bucket_reso_steps": 16, "min_bucket_reso": 32, "max_bucket_reso": 128}
WIDE_AND_TALL = ((64, 70), (64, 130), (130, 60), (64, 131), (90, 60))


@pytest.mark.parametrize("rows", [None, 1])
def test_a_step_over_buckets_is_the_mean_of_its_pictures_roles_apart(
    base: BaseModel, tiny_folder: Path, tmp_path: Path, rows: int | None
) -> None:
    """Against a plain computation: one picture after the other, of whatever size and pass."""
    fields = {"train_batch_size": 2, "gradient_accumulation_steps": 3, **BUCKETS}
    prior = {"with_prior_preservation": True, "class_prompt": "a toy", "class_dataset": "ds_2"}
    spec = TrainSpec.model_validate(spec_for(tiny_folder, **fields, **prior, prior_loss_weight=0.3))
    inputs = draw_pictures(tmp_path, 5, sizes=WIDE_AND_TALL)
    inputs += draw_pictures(tmp_path, 4, first=50, role="class", sizes=WIDE_AND_TALL)
    cached_inputs = cache_inputs(base, spec, load_samples(inputs, spec), seed=7, first_step=0, tick=lambda *_: None)
    objective = Objective.of(spec, base.noise_scheduler, prediction_type="epsilon")
    losses: dict[str, list[torch.Tensor]] = {"instance": [], "class": []}
    sizes = set()
    with torch.no_grad():
        for micro in range(3):
            for draw in cached_inputs.draws.micro_batch(0, micro):
                one = assemble(cached_inputs.draws, [draw], cached_inputs.latents, base.vae.config)
                said = cached_inputs.embeddings.batch([cached_inputs.draws.caption(draw)])
                losses[draw.role].append(objective.each(base.unet, one, said)[0])
                sizes.add(one.latents_BCHW.shape[2:])
    assert len(sizes) > 1
    expected = torch.stack(losses["instance"]).mean() + 0.3 * torch.stack(losses["class"]).mean()
    feed = PassFeed(
        cached_inputs, base.vae.config, first_step=0, end_step=1, rows=rows, pinned=False, clock=lambda: 0.0
    )
    with add_adapters(base, spec) as adapters, feed:
        stepper = Stepper(
            base=base,
            spec=spec,
            learning=adapters.learning,
            objective=objective,
            embeddings=cached_inputs.embeddings,
            optimizer=optimizer_of(adapters, spec),
        )
        torch.testing.assert_close(stepper.step(0, feed)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_passes_of_any_size_add_up_to_the_same_step(
    base: BaseModel, tiny_folder: Path, tmp_path: Path, rows: int
) -> None:
    losses, weights = trained(base, tmp_path, tiny_folder, rows=None)
    other_losses, other_weights = trained(base, tmp_path, tiny_folder, rows=rows)
    assert other_losses == pytest.approx(losses, rel=1e-5)
    moved = torch.cat([weights[name].flatten() for name in weights if "lora_B" in name])
    other_moved = torch.cat([other_weights[name].flatten() for name in weights if "lora_B" in name])
    # Adam divides by the gradient's size: where that is all but zero, rounding decides on the direction of a step.
    assert float(moved.norm()) > 0.01
    assert float((moved - other_moved).norm() / moved.norm()) < 0.01
