"""How a spec says that its base is held in 8 bits, and who hears of it."""

import pytest
from pydantic import ValidationError

from giornata.diffusion.files.lora_facts import facts_of, kohya_metadata
from giornata.diffusion.files.model_card import hashes_of, model_card, recipe_sha256
from giornata.protocol.node.joint import joint_key, why_solo
from giornata.protocol.specs import TrainSpec, canonical_names, model_key
from giornata.protocol.training.base_model import BaseQuantization


def spec_of(**fields: object) -> TrainSpec:
    return TrainSpec.model_validate({"model": "owner/name", "dataset": "ds_1", "seed": 5, **fields})


@pytest.mark.parametrize("name", ["fp8_base", "fp8_base_unet"])
def test_kohya_s_name_is_understood_and_reported_as_ours(name: str) -> None:
    reported = spec_of(**{name: True}).model_dump(mode="json")
    assert reported["base_quantization"] == "fp8"
    assert not reported.keys() & {"fp8_base", "fp8_base_unet"}
    assert spec_of(**{name: False}).base_quantization is BaseQuantization.NONE
    assert spec_of(**{name: True, "base_quantization": "fp8"}) == spec_of(**{name: True})
    canonical, faults = canonical_names(TrainSpec, {"fp8_base": True, "fp8_base_unet": True})
    assert canonical == {"fp8_base": True}
    assert [fault.where for fault in faults] == ["spec.fp8_base_unet"]


def test_the_two_ways_to_say_it_must_not_differ() -> None:
    for other in ("int8", "none"):
        with pytest.raises(ValidationError, match=f"fp8_base conflicts with base_quantization {other}; choose one"):
            spec_of(fp8_base=True, base_quantization=other)
    with pytest.raises(ValidationError, match="'none', 'int8' or 'fp8'"):
        spec_of(base_quantization="nf4")


def test_a_node_that_holds_one_does_not_hold_the_other() -> None:
    keys = {model_key("train", spec_of(base_quantization=kind).model_dump()) for kind in BaseQuantization}
    keys |= {model_key("train", spec_of(base_quantization=kind).model_dump(mode="json")) for kind in BaseQuantization}
    assert len(keys) == 3
    assert model_key("train", {"pretrained_model_name_or_path": "owner/name"}) == "owner/name|||"
    assert model_key("train", spec_of().model_dump()) == "owner/name|||"


def test_jobs_on_one_narrow_base_may_share_a_batch_with_no_others() -> None:
    keys = {joint_key(spec_of(base_quantization=kind)) for kind in BaseQuantization}
    assert len(keys) == 3
    assert None not in keys
    assert why_solo(spec_of(fp8_base=True)) == ()


def test_the_files_and_the_card_say_it() -> None:
    said = {}
    for kind in BaseQuantization:
        spec = spec_of(base_quantization=kind)
        facts = facts_of(spec, step=5, captions=["a"])
        extra = hashes_of(spec, data_sha256="d" * 64, base_sha256="b" * 64)
        metadata = kohya_metadata(facts, data_sha256="d" * 64, convolutions=False) | extra
        card = model_card(facts, files=["lora-kohya.safetensors"], parameters=1, extra=extra)
        row = f"| base | its UNet held in 8 bits ({kind}) |" in card
        said[kind] = (metadata.get("giornata.base_quantization"), metadata.get("ss_fp8_base"), row)
    assert said == {
        BaseQuantization.NONE: (None, None, False),
        BaseQuantization.INT8: ("int8", None, True),
        BaseQuantization.FP8: ("fp8", "True", True),
    }
    assert len({recipe_sha256(spec_of(base_quantization=kind)) for kind in BaseQuantization}) == 3
