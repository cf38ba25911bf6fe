"""Which layer a job works by that trains alone, and that either makes the same of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.train_studio import spec_for

from giornata.diffusion import captions
from giornata.diffusion.lora import Adapters, add_adapters
from giornata.diffusion.models import BaseModel, load_base
from giornata.diffusion.objective import answer
from giornata.diffusion.randomness import normal
from giornata.protocol.joint import OPTIMIZERS
from giornata.protocol.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimisation import Optimizer
from giornata.workloads.train.keeping import Learner, state_of
from giornata.workloads.train.steps import optimizer_of
from giornata.workloads.train.wearing import LEAN, PEFT, lora_layer, wearing


@pytest.fixture(scope="module")
def base(tiny_folder: Path) -> BaseModel:
    return load_base(TrainSpec.model_validate(spec_for(tiny_folder)), device="cpu", dtype=torch.float32)


def spec_of(**fields: Any) -> TrainSpec:
    return TrainSpec.model_validate(spec_for(Path("base"), **fields))


def start_of(folder: Path) -> Start:
    return Start(attempt="at_1", job="jb_1", kind="train", spec={}, directory=folder)


PRIOR = {"with_prior_preservation": True, "prior_prediction": True, "class_prompt": "a toy"}


@pytest.mark.parametrize(
    ("fields", "layer"),
    [
        ({}, LEAN),
        ({"share_batch": False, "compile": "on"}, LEAN),
        ({"optimizer": "adamw_8bit", "enable_bucket": True, "min_bucket_reso": 64, "masked_loss": True}, LEAN),
        ({"init_lora": "0" * 64, "do_edm_style_training": True, **PRIOR}, LEAN),
        ({"train_text_encoder_ti": True, "instance_prompt": "a photo of TOK"}, LEAN),
        ({"rank_pattern": {"to_q": 4}, "lora_unet_blocks": ("up_blocks",)}, LEAN),
        ({"target_modules": ("to_q", "proj_in")}, LEAN),
        ({"use_dora": True}, PEFT),
        ({"adapter_type": "lokr", "output_formats": ("kohya",)}, PEFT),
        ({"target_modules": ("to_q", "conv1")}, PEFT),
    ],
    ids=str,
)
def test_the_adapter_alone_decides(base: BaseModel, fields: dict[str, Any], layer: str) -> None:
    assert lora_layer(base, spec_of(**fields)) == layer


def stirred(adapters: Adapters) -> None:
    """Weights that make a difference."""
    adapters.load({name: normal(7, name, shape=tuple(old.shape)) * 0.1 for name, old in adapters.parameters.items()})


def after_two_steps(adapters: Adapters, optimizer: Learner) -> dict[str, torch.Tensor]:
    """All that a checkpoint has, after gradients that are a function of their names."""
    stirred(adapters)
    optimizer.restore(0, {})
    for step in range(2):
        for name, parameter in adapters.parameters.items():
            assert parameter.grad is not None
            parameter.grad.copy_(normal(step, name, shape=tuple(parameter.shape)))
        optimizer.step(step)
    return {name: tensor.clone() for name, tensor in state_of(adapters, optimizer).items()}


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_optimizers_do_to_each_matrix_what_they_did(base: BaseModel, tmp_path: Path, optimizer: Optimizer) -> None:
    """So a checkpoint of either layer is one of the other. Bit for bit, but where whole rows are clipped at once."""
    rates = dict.fromkeys(("learning_rate", "text_encoder_lr"), 1.0 if optimizer is Optimizer.PRODIGY else 1e-2)
    fields = {"rank": 64, "train_text_encoder": True, "lora_unet_blocks": ("mid_block",), **rates}
    spec = spec_of(optimizer=optimizer, **fields)
    with add_adapters(base, spec) as adapters:
        wanted = after_two_steps(adapters, optimizer_of(adapters, spec))
    with wearing(base, spec, start_of(tmp_path)) as (adapters, learner):
        found = after_two_steps(adapters, learner)
    assert found.keys() == wanted.keys()
    if optimizer in OPTIMIZERS:
        torch.testing.assert_close(found, wanted)
    assert optimizer in OPTIMIZERS or all(torch.equal(found[name], wanted[name]) for name in wanted)


def gradients(base: BaseModel, adapters: Adapters) -> dict[str, torch.Tensor]:
    stirred(adapters)
    latents_BCHW, ids_B6 = normal(1, "latents", shape=(1, 4, 8, 8)), torch.full((1, 6), 64.0)
    with adapters.learning():
        embedding = captions.encode(base.tokenizers, base.text_encoders, ["a photo of a toy"], family=base.family)
        answer(base.unet, latents_BCHW, torch.tensor([400]), ids_B6, embedding).square().mean().backward()
    return {name: each.grad.clone() for name, each in adapters.parameters.items() if each.grad is not None}


def test_layers_have_ranks_and_alphas_of_their_own(base: BaseModel, tmp_path: Path) -> None:
    """Against peft's: sizes that part siblings, scales that part them, chosen blocks, chosen layers of text."""
    spec = spec_of(
        rank=3,
        rank_pattern={"to_q": 5, r"up_blocks.*\.to_k": 2},
        alpha_pattern={"to_v": 9.0, r"text_encoder(_2)?\..*": 1.0},
        use_rslora=True,
        lora_unet_blocks=("mid_block", "up_blocks"),
        train_text_encoder=True,
        text_encoder_target_modules=("q_proj", "v_proj", "fc1"),
    )
    with add_adapters(base, spec) as adapters:
        wanted = gradients(base, adapters)
    with wearing(base, spec, start_of(tmp_path)) as (adapters, _):
        found = gradients(base, adapters)
    largest = max(float(each.abs().max()) for each in wanted.values())
    # peft leaves the last layer of the first text encoder, whose output nobody reads, without a gradient.
    torch.testing.assert_close({name: found[name] for name in wanted}, wanted, atol=1e-2 * largest, rtol=2e-2)
    assert not any(found[name].any() for name in found.keys() - wanted.keys())
    assert {len(each) for name, each in found.items() if "mid_block" in name and ".to_q.lora_A." in name} == {5}
