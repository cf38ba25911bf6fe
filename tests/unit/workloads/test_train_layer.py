"""Which layer a job works by that trains alone, and that either makes the same of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from tests.fixtures.train_rig import spec_for

from giornata.diffusion.adapter.batched_lora import BatchedLoraLinear
from giornata.diffusion.adapter.dropping import UNITS
from giornata.diffusion.adapter.lora import Adapters, add_adapters
from giornata.diffusion.adapter.slots import AdapterSlots
from giornata.diffusion.adapter.tokens import add_tokens, taught
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.encode import captions
from giornata.diffusion.optim.objective import answer
from giornata.diffusion.optim.optimizer import JobOptimizer
from giornata.diffusion.optim.slot_optimizer import SlotOptimizer
from giornata.domain.errors import WorkloadFailed
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimization import Optimizer
from giornata.workloads.train.attach_adapter import BOTH, LEAN, PEFT, attach_adapter, layer_entries, lora_layer
from giornata.workloads.train.results.checkpoint_writer import state_of
from giornata.workloads.train.steps import optimizer_of


@pytest.fixture(scope="module")
def base(tiny_folder: Path) -> BaseModel:
    return load_base(TrainSpec.model_validate(spec_for(tiny_folder)), device="cpu", dtype=torch.float32)


def spec_of(**fields: Any) -> TrainSpec:
    return TrainSpec.model_validate(spec_for(Path("base"), **fields))


def start_of(folder: Path) -> Start:
    return Start(attempt="at_1", job="jb_1", kind="train", spec={}, directory=folder)


NEW_TOKENS = {"train_text_encoder_ti": True, "instance_prompt": "a photo of TOK"}
OF_PARTS = {"block_learning_rates": {"mid_block.resnets": 1e-3, "mid_block.resnets.1": 0, "mid_block.attentions": 0}}
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
        ({"target_modules": ("conv1", "conv2")}, PEFT),
        ({"target_modules": ("to_q", "conv1")}, BOTH),
        ({"target_modules": ("conv1",), "train_text_encoder": True}, BOTH),
    ],
    ids=str,
)
def test_the_adapter_alone_decides(base: BaseModel, fields: dict[str, Any], layer: str) -> None:
    assert lora_layer(base, spec_of(**fields)) == layer


def stirred(adapters: Adapters) -> None:
    """Weights that make a difference."""
    adapters.load({name: normal(7, name, shape=tuple(old.shape)) * 0.1 for name, old in adapters.parameters.items()})


def after_two_steps(adapters: Adapters, optimizer: JobOptimizer) -> dict[str, torch.Tensor]:
    """All that a checkpoint has, after gradients that are a function of their names."""
    stirred(adapters)
    optimizer.restore(0, {})
    for step in range(2):
        for name, parameter in adapters.parameters.items():
            assert parameter.grad is not None
            parameter.grad.copy_(normal(step, name, shape=tuple(parameter.shape)))
        optimizer.step(step)
    return {name: tensor.clone() for name, tensor in state_of(adapters, optimizer).items()}


def rates(optimizer: Optimizer, adapter: dict[str, Any]) -> dict[str, float]:
    rate = 1.0 if optimizer is Optimizer.PRODIGY else 1e-2
    text = {"train_text_encoder", "train_text_encoder_ti"} & adapter.keys()
    return {"learning_rate": rate} | ({"text_encoder_lr": rate} if text else {})


CONV = ("to_q", "to_k", "to_v", "proj_out", "conv1")
"""Of the UNet: siblings, a layer by itself, and convolutions."""
EXACT = frozenset({Optimizer.ADAMW_8BIT, Optimizer.ADAFACTOR})
"""They look at whole tensors, and are given them. The others are given rows, whose sums round otherwise."""


@pytest.mark.parametrize(
    ("optimizer", "adapter"),
    [
        *((optimizer, {"train_text_encoder": True}) for optimizer in Optimizer),
        (Optimizer.ADAMW, {"target_modules": CONV, "train_text_encoder": True}),
        (Optimizer.PRODIGY, {"target_modules": CONV}),
        (Optimizer.PRODIGY, {"use_dora": True, "target_modules": CONV}),
        (Optimizer.SCHEDULE_FREE, {"adapter_type": "lokr", "output_formats": ("kohya",)}),
        (Optimizer.ADAFACTOR, {"target_modules": CONV}),
        (Optimizer.ADAFACTOR, {"use_dora": True}),
        (Optimizer.PRODIGY, {**NEW_TOKENS, "train_text_encoder_ti_frac": 1.0}),
        (Optimizer.SCHEDULE_FREE, {"target_modules": CONV, **OF_PARTS}),
        (Optimizer.LION, {"target_modules": CONV, "scale_weight_norms": 0.02}),
    ],
    ids=str,
)
def test_optimizers_do_to_each_matrix_what_they_did(
    base: BaseModel, tmp_path: Path, optimizer: Optimizer, adapter: dict[str, Any]
) -> None:
    """So a checkpoint of either layer is one of the other. Bit for bit, but where whole rows are summed at once."""
    spec = spec_of(
        optimizer=optimizer, rank=64, lora_unet_blocks=("mid_block",), **rates(optimizer, adapter), **adapter
    )
    base = taught(base, spec)
    with add_tokens(base, spec) as tokens, add_adapters(base, spec) as put_on:
        adapters = replace(put_on, parameters=put_on.parameters | tokens.rows)
        wanted = after_two_steps(adapters, optimizer_of(adapters, spec, tokens))
    with attach_adapter(base, spec, start_of(tmp_path)) as (adapters, adapter_optimizer):
        found = after_two_steps(adapters, adapter_optimizer)
    assert found.keys() == wanted.keys()
    assert {name: each.shape for name, each in found.items()} == {name: each.shape for name, each in wanted.items()}
    if optimizer in EXACT:
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "adapter",
    [{"target_modules": CONV}, {"use_dora": True}, {"adapter_type": "lokr", "output_formats": ("kohya",)}],
    ids=str,
)
@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW, Optimizer.PRODIGY])
def test_rows_of_layers_of_peft_are_taken_out_and_put_back(
    base: BaseModel, tmp_path: Path, adapter: dict[str, Any], optimizer: Optimizer
) -> None:
    """A resumed job has the bits of one that went on."""
    fields = {**rates(optimizer, adapter), "use_ema": optimizer is Optimizer.ADAMW, **adapter}
    spec = spec_of(optimizer=optimizer, lora_unet_blocks=("mid_block",), rank=4, **fields)

    def stepped(adapters: Adapters, adapter_optimizer: JobOptimizer, steps: range) -> dict[str, torch.Tensor]:
        for step in steps:
            for name, parameter in adapters.parameters.items():
                assert parameter.grad is not None
                parameter.grad.copy_(normal(1, name, shape=tuple(parameter.shape)))
            adapter_optimizer.step(step)
        return {name: tensor.clone() for name, tensor in state_of(adapters, adapter_optimizer).items()}

    with attach_adapter(base, spec, start_of(tmp_path)) as (adapters, adapter_optimizer):
        half = stepped(adapters, adapter_optimizer, range(3))
        whole = stepped(adapters, adapter_optimizer, range(3, 6))
    with attach_adapter(base, spec, start_of(tmp_path)) as (adapters, adapter_optimizer):
        adapters.load({name: half[f"adapter.{name}"] for name in adapters.parameters})
        adapter_optimizer.restore(3, half)
        resumed = stepped(adapters, adapter_optimizer, range(3, 6))
    assert resumed.keys() == whole.keys()
    assert [name for name in whole if not torch.equal(resumed[name], whole[name])] == []
    assert any(not torch.equal(half[name], whole[name]) for name in whole)


def test_optimizers_have_rows_instead_of_tensors(base: BaseModel, tmp_path: Path) -> None:
    """What is plain LoRA in the lean layer's row, and the rest in another."""
    spec = spec_of(target_modules=CONV, train_text_encoder=True)
    with attach_adapter(base, spec, start_of(tmp_path)) as (adapters, adapter_optimizer):
        assert isinstance(adapter_optimizer, SlotOptimizer)
        rows = adapter_optimizer._rows._parameters
        assert set(rows) == {"text_encoders", "unet", "unet_apart"}
        assert sum(row.numel() for row in rows.values()) == sum(each.numel() for each in adapters.parameters.values())
        convolutions = [each for name, each in adapters.parameters.items() if ".conv1." in name]
        assert rows["unet_apart"].numel() == sum(each.numel() for each in convolutions)
        lean = {name for name, layer in base.unet.named_modules() if isinstance(layer, BatchedLoraLinear)}
        assert {name.rpartition(".")[2] for name in lean} == {"to_q", "to_k", "to_v", "proj_out"}
        assert {type(layer).__name__ for layer in base.unet.modules() if isinstance(layer, BaseTunerLayer)} == {
            "Conv2d"
        }
    assert not any(isinstance(layer, (BatchedLoraLinear, BaseTunerLayer)) for layer in base.unet.modules())


def test_all_layers_of_a_job_look_at_one_dropping(base: BaseModel, tmp_path: Path) -> None:
    """Lean ones and peft's: where every module is left out, the base answers."""
    spec = spec_of(target_modules=CONV, lora_unet_blocks=("mid_block",), module_dropout=0.5)
    latents_BCHW, ids_B6 = normal(1, "latents", shape=(1, 4, 8, 8)), torch.full((1, 6), 64.0)
    embedding = captions.encode(base.tokenizers, base.text_encoders, ["a photo of a toy"], family=base.family)

    def answered() -> torch.Tensor:
        with torch.no_grad():
            return answer(base.unet, latents_BCHW, torch.tensor([400]), ids_B6, embedding)

    bare_BCHW = answered()
    with attach_adapter(base, spec, start_of(tmp_path)) as (adapters, _):
        stirred(adapters)
        assert not torch.allclose(answered(), bare_BCHW, atol=1e-4)
        with adapters.dropping.during(torch.tensor([[1, 2, 0, 0, UNITS]])):
            torch.testing.assert_close(answered(), bare_BCHW, rtol=1e-5, atol=1e-6)


def test_the_fingerprint_says_what_rounds_otherwise_than_before() -> None:
    assert layer_entries(LEAN, spec_of()) == {"lora_layer": "slots"}
    assert layer_entries(PEFT, spec_of(use_dora=True)) == {"lora_layer": "peft", "rows": "all"}
    assert layer_entries(PEFT, spec_of(use_dora=True, optimizer="adamw_8bit")) == {"lora_layer": "peft"}
    assert layer_entries(BOTH, spec_of(target_modules=CONV))["lora_layer"] == "slots and peft"


def test_a_shared_batch_refuses_convolutions_as_before(base: BaseModel) -> None:
    with pytest.raises(WorkloadFailed, match="is not a plain linear layer"):
        AdapterSlots(base, spec_of(target_modules=CONV), count=2, rank=16)


def gradients(base: BaseModel, adapters: Adapters) -> dict[str, torch.Tensor]:
    stirred(adapters)
    latents_BCHW, ids_B6 = normal(1, "latents", shape=(1, 4, 8, 8)), torch.full((1, 6), 64.0)
    with adapters.learning():
        embedding = captions.encode(base.tokenizers, base.text_encoders, ["a photo of a toy"], family=base.family)
        answer(base.unet, latents_BCHW, torch.tensor([400]), ids_B6, embedding).square().mean().backward()
    return {name: each.grad.clone() for name, each in adapters.parameters.items() if each.grad is not None}


@pytest.mark.parametrize("conv", [False, True])
def test_layers_have_ranks_and_alphas_of_their_own(base: BaseModel, tmp_path: Path, conv: bool) -> None:
    """Against peft's: sizes that part siblings, scales that part them, chosen blocks, chosen layers of text,
    convolutions among them."""
    targets = {"target_modules": CONV} if conv else {}
    spec = spec_of(
        **targets,
        rank=3,
        rank_pattern={"to_q": 5, r"up_blocks.*\.to_k": 2},
        alpha_pattern={"to_v": 9.0, r"text_encoder(_2)?\..*": 1.0},
        use_rslora=True,
        lora_unet_blocks=("mid_block", "up_blocks"),
        train_text_encoder=True,
        text_encoder_target_modules=("q_proj", "v_proj", "fc1"),
    )
    with add_adapters(base, spec) as adapters:
        wanted, names = gradients(base, adapters), list(adapters.parameters)
    with attach_adapter(base, spec, start_of(tmp_path)) as (adapters, _):
        found = gradients(base, adapters)
        assert list(adapters.parameters) == names
    largest = max(float(each.abs().max()) for each in wanted.values())
    # peft leaves the last layer of the first text encoder, whose output nobody reads, without a gradient.
    torch.testing.assert_close({name: found[name] for name in wanted}, wanted, atol=1e-2 * largest, rtol=2e-2)
    assert not any(found[name].any() for name in found.keys() - wanted.keys())
    assert {len(each) for name, each in found.items() if "mid_block" in name and ".to_q.lora_A." in name} == {5}
