"""Adapters: initialized by name, fp32, and gone without a trace."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model_state_dict
from peft.tuners.lora import Linear as LoraLinear

from giornata.diffusion.adapter.lora import ADAPTER, TEXT_TARGETS, add_adapters, target_faults
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec


def spec_of(folder: Path, **fields: object) -> TrainSpec:
    return TrainSpec.model_validate({"model": str(folder), "dataset": "ds_1", "seed": 5, "rank": 4, **fields})


def outputs(base: BaseModel) -> list[torch.Tensor]:
    """The UNet's noise and both text encoders' hidden states and pooled output, for fixed inputs."""
    draw = torch.Generator().manual_seed(0)
    ids = {"text_embeds": torch.ones((1, 32), dtype=base.dtype), "time_ids": torch.full((1, 6), 64.0)}
    latents_BCHW = torch.randn((1, 4, 8, 8), generator=draw).to(base.dtype)
    text_BLD = torch.randn((1, 77, 64), generator=draw).to(base.dtype)
    tokens_BL = torch.arange(77)[None]
    with torch.no_grad():
        noise_BCHW = base.unet(latents_BCHW, 300, text_BLD, added_cond_kwargs=ids).sample
        hidden = [model(tokens_BL, output_hidden_states=True).hidden_states[-2] for model in base.text_encoders]
        return [noise_BCHW, *hidden, base.text_encoders[1](tokens_BL)[0]]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def shape_of(base: BaseModel) -> list[tuple[str, str]]:
    models = (base.unet, *base.text_encoders)
    return [(name, type(module).__name__) for model in models for name, module in model.named_modules()]


def test_names_are_pefts_keys_in_sorted_order(tiny_base: BaseModel, tiny_folder: Path) -> None:
    with add_adapters(tiny_base, spec_of(tiny_folder, train_text_encoder=True)) as adapters:
        raw = {f"unet.{key}" for key in get_peft_model_state_dict(tiny_base.unet, adapter_name=ADAPTER)}
        names = list(adapters.parameters)
        assert names == sorted(names)
        assert {name for name in names if name.startswith("unet.")} == raw
        for prefix in ("text_encoder.", "text_encoder_2."):
            found = {name for name in names if name.startswith(prefix)}
            assert len(found) == 2 * len(TEXT_TARGETS) * 2
            assert all(name.startswith(f"{prefix}text_model.encoder.layers.") for name in found)
        assert len(names) == len(raw) + 32
        trainable = {id(p) for model in adapters.models for p in model.parameters() if p.requires_grad}
        assert trainable == {id(parameter) for parameter in adapters.parameters.values()}


def test_fresh_adapters_change_nothing_and_trained_ones_do(tiny_base: BaseModel, tiny_folder: Path) -> None:
    before = outputs(tiny_base)
    with add_adapters(tiny_base, spec_of(tiny_folder, train_text_encoder=True)) as adapters:
        assert same(outputs(tiny_base), before)
        with torch.no_grad():
            for parameter in adapters.parameters.values():
                parameter.add_(0.05)
        assert not any(torch.equal(a, b) for a, b in zip(outputs(tiny_base), before, strict=True))


def test_initial_weights_are_a_function_of_seed_and_name(tiny_base: BaseModel, tiny_folder: Path) -> None:
    torch.manual_seed(1)
    with add_adapters(tiny_base, spec_of(tiny_folder)) as adapters:
        few = adapters.tensors()
    torch.manual_seed(2)
    with add_adapters(tiny_base, spec_of(tiny_folder, target_modules=["to_q", "to_k"])) as adapters:
        assert all(torch.equal(value, few[name]) for name, value in adapters.tensors().items())
    with add_adapters(tiny_base, spec_of(tiny_folder, seed=6)) as adapters:
        drawn = {name: value for name, value in adapters.tensors().items() if ".lora_A." in name}
        assert not any(torch.equal(value, few[name]) for name, value in drawn.items())


def test_initial_weights_are_distributed_as_pefts(tiny_base: BaseModel, tiny_folder: Path) -> None:
    """B is zero; A is uniform in ±1/sqrt(fan-in), which has a deviation of that bound over sqrt(3)."""
    with add_adapters(tiny_base, spec_of(tiny_folder, rank=64, target_modules=["to_q", "conv1"])) as adapters:
        for name, value in adapters.tensors().items():
            if ".lora_B." in name:
                assert not value.any()
                continue
            bound = value[0].numel() ** -0.5
            assert value.abs().max() <= bound
            assert value.std().item() == pytest.approx(bound / 3**0.5, rel=0.06)


def test_adding_leaves_the_random_state_alone(tiny_base: BaseModel, tiny_folder: Path) -> None:
    torch.manual_seed(9)
    expected = torch.rand(2)
    torch.manual_seed(9)
    add_adapters(tiny_base, spec_of(tiny_folder)).remove()
    assert torch.equal(torch.rand(2), expected)


def test_weights_are_fp32_over_a_bf16_base(tiny_folder: Path, tiny_base: BaseModel) -> None:
    spec = spec_of(tiny_folder, train_text_encoder=True)
    base = load_base(spec, device="cpu", dtype=torch.bfloat16)
    before = outputs(base)
    with add_adapters(tiny_base, spec) as adapters:
        reference = adapters.tensors()
    with add_adapters(base, spec) as adapters:
        assert {parameter.dtype for parameter in adapters.parameters.values()} == {torch.float32}
        assert all(torch.equal(value, reference[name]) for name, value in adapters.tensors().items())
        assert same(outputs(base), before)
    assert same(outputs(base), before)


@pytest.mark.parametrize("broken", [False, True], ids=["at the end", "after an exception"])
def test_removal_leaves_the_base_as_it_was(tiny_base: BaseModel, tiny_folder: Path, broken: bool) -> None:
    before, shape = outputs(tiny_base), shape_of(tiny_base)
    spec = spec_of(tiny_folder, train_text_encoder=True, target_modules=["to_q", "to_out.0", "conv1", "proj_in"])
    adapters = add_adapters(tiny_base, spec)
    with torch.no_grad():
        for parameter in adapters.parameters.values():
            parameter.fill_(0.1)
    if broken:
        with pytest.raises(ZeroDivisionError), adapters:
            raise ZeroDivisionError
    adapters.remove()
    adapters.remove()
    assert same(outputs(tiny_base), before)
    assert shape_of(tiny_base) == shape
    assert not hasattr(tiny_base.unet, "peft_config")
    assert not any(parameter.requires_grad for parameter in tiny_base.unet.parameters())


def test_a_failure_half_way_leaves_the_base_as_it_was(tiny_base: BaseModel, tiny_folder: Path) -> None:
    """The UNet and the first text encoder are done when the second turns out to have no attention."""
    shape = shape_of(tiny_base)
    odd = torch.nn.Sequential(torch.nn.Linear(2, 2))
    wrong = replace(tiny_base, text_encoders=(tiny_base.text_encoders[0], odd))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Target modules"):
        add_adapters(wrong, spec_of(tiny_folder, train_text_encoder=True))
    assert shape_of(tiny_base) == shape


def test_unknown_targets_are_all_named_with_what_there_is(tiny_base: BaseModel, tiny_folder: Path) -> None:
    shape = shape_of(tiny_base)
    targets = ["to_q", "to_qq", "o_k", "attn1", "ff.net.0.proj"]
    with pytest.raises(WorkloadFailed) as failure:
        add_adapters(tiny_base, spec_of(tiny_folder, target_modules=targets))
    assert failure.value.reason is Reason.BAD_SPEC
    assert {fault.where for fault in failure.value.faults} == {"spec.target_modules"}
    missing, wide = failure.value.faults
    assert "to_qq, o_k" in missing.message
    assert "attn1" in wide.message
    assert {"to_k", "to_out.0", "net.0.proj", "conv_in"} <= set(missing.hint.removeprefix("there are ").split(", "))
    assert shape_of(tiny_base) == shape
    assert not target_faults(tiny_base.unet, ("to_q", "ff.net.0.proj", "conv_in"))


def test_a_job_without_a_seed_is_refused(tiny_base: BaseModel, tiny_folder: Path) -> None:
    with pytest.raises(WorkloadFailed, match=r"spec\.seed"):
        add_adapters(tiny_base, spec_of(tiny_folder, seed=None))


def test_loading_takes_exactly_its_own_tensors(tiny_base: BaseModel, tiny_folder: Path) -> None:
    with add_adapters(tiny_base, spec_of(tiny_folder)) as adapters:
        wanted = {name: torch.full_like(value, 0.25) for name, value in adapters.tensors().items()}
        adapters.load(wanted)
        assert all(torch.equal(value, wanted[name]) for name, value in adapters.tensors().items())
        first = next(iter(wanted))
        for wrong in (
            {name: value for name, value in wanted.items() if name != first},
            wanted | {"unet.other": torch.ones(1)},
            wanted | {first: torch.ones(1)},
        ):
            with pytest.raises(ValueError, match="do not fit"):
                adapters.load(wrong)


def test_alpha_sets_the_scale(tiny_base: BaseModel, tiny_folder: Path) -> None:
    """Twice the alpha and half of B give the same picture; the default is alpha = rank."""
    spec = spec_of(tiny_folder)
    with add_adapters(tiny_base, spec) as adapters:
        assert adapters.alpha == 4
        weights = {name: value + 0.03125 for name, value in adapters.tensors().items()}
        adapters.load(weights)
        whole = outputs(tiny_base)[0]
    halved = {name: value / 2 if ".lora_B." in name else value for name, value in weights.items()}
    with add_adapters(tiny_base, spec_of(tiny_folder, alpha=8)) as adapters:
        adapters.load(halved)
        assert torch.allclose(outputs(tiny_base)[0], whole, atol=1e-6)
        adapters.load(weights)
        assert not torch.allclose(outputs(tiny_base)[0], whole, atol=1e-3)


@pytest.mark.parametrize(("rank", "alpha"), [(4, None), (9, 3.0)])
def test_rank_stabilized_scales_are_pefts_and_every_loader_computes_them(
    tiny_base: BaseModel, tiny_folder: Path, rank: int, alpha: float | None
) -> None:
    spec = spec_of(tiny_folder, rank=rank, alpha=alpha, use_rslora=True)
    pefts = LoraConfig(r=rank, lora_alpha=alpha or rank, target_modules=["to_q"], use_rslora=True)
    layer = LoraLinear(torch.nn.Linear(4, 4), "a", config=pefts, r=rank, lora_alpha=alpha or rank)
    with add_adapters(tiny_base, spec) as adapters:
        assert adapters.alpha / rank == pytest.approx(layer.scaling["a"])
        (module,) = [m for n, m in tiny_base.unet.named_modules() if n.endswith("attn1.to_q")][:1]
        assert module.scaling[ADAPTER] == pytest.approx(layer.scaling["a"])
