"""New words for both text encoders: only their rows learn, and the base is left as it was."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionXLPipeline
from safetensors import safe_open
from safetensors.torch import load_file

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.adapter.tokens import add_tokens, learning_steps, taught, unsaid
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.encode.captions import encode
from giornata.diffusion.files.formats import write_embeddings, write_kohya
from giornata.diffusion.files.lora_facts import facts_of
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.train_fields import spoken, words_of

PLAIN = "a photo of a dog"
SAID = "a photo of TOK, a dog"


def spec_with(**changes: Any) -> TrainSpec:
    fields = {"pretrained_model_name_or_path": "m", "dataset": "ds_1", "seed": 7, "train_text_encoder_ti": True}
    return TrainSpec.model_validate(fields | changes)


def state_of(base: BaseModel) -> dict[str, torch.Tensor]:
    return {
        f"{number}.{name}": tensor.clone()
        for number, encoder in enumerate(base.text_encoders)
        for name, tensor in encoder.state_dict().items()
    }


def heard(base: BaseModel, caption: str) -> torch.Tensor:
    said = encode(base.tokenizers, base.text_encoders, [caption])
    return torch.cat([said.prompt_BLD.flatten(), said.pooled_BP.flatten()])


def test_token_abstractions_become_new_tokens_in_captions_and_missing_ones_are_reported() -> None:
    spec = spec_with(token_abstraction="TOK,PAINT", num_new_tokens_per_abstraction=3)
    assert words_of(spec) == {"TOK": ("<s0>", "<s1>", "<s2>"), "PAINT": ("<s3>", "<s4>", "<s5>")}
    assert spoken(spec, "TOK and TOK as PAINT") == "<s0><s1><s2> and <s0><s1><s2> as <s3><s4><s5>"
    assert [fault.message for fault in unsaid(spec, ["a TOK"])] == [
        "no caption says PAINT, so its tokens would learn nothing"
    ]
    without = spec_with(train_text_encoder_ti=False)
    assert spoken(without, SAID) == SAID
    assert not words_of(without)
    assert not unsaid(without, [PLAIN])


@pytest.mark.parametrize(("fraction", "steps"), [(0.5, 5), (0.01, 1), (0.99, 9), (1.0, 10)])
def test_new_tokens_train_for_given_fraction_of_steps(fraction: float, steps: int) -> None:
    assert learning_steps(spec_with(train_text_encoder_ti_frac=fraction, max_train_steps=10)) == steps


def test_new_tokens_are_one_token_each_and_the_bases_tokenizers_do_not_learn_them(tiny_base: BaseModel) -> None:
    spec = spec_with()
    knowing = taught(tiny_base, spec)
    for old, new in zip(tiny_base.tokenizers, knowing.tokenizers, strict=True):
        first = len(old)
        assert new(spoken(spec, "TOK"), add_special_tokens=False).input_ids == [first, first + 1]
        assert first not in old(spoken(spec, "TOK"), add_special_tokens=False).input_ids
        assert old(PLAIN).input_ids == new(PLAIN).input_ids
        assert len(old) == len(new) - 2
    assert knowing.unet is tiny_base.unet
    assert taught(tiny_base, spec_with(train_text_encoder_ti=False)) is tiny_base
    with pytest.raises(WorkloadFailed, match="<s0>, <s1>") as refused:
        taught(knowing, spec)
    assert refused.value.reason is Reason.BAD_SPEC


def test_pivotal_tuning_trains_only_new_token_rows_and_leaves_base_unchanged(tiny_base: BaseModel) -> None:
    spec = spec_with()
    before, plain = state_of(tiny_base), heard(tiny_base, PLAIN)
    base = taught(tiny_base, spec)
    with add_tokens(base, spec) as tokens:
        assert torch.equal(heard(base, PLAIN), plain)
        first = heard(base, spoken(spec, SAID))
        first.square().sum().backward()
        assert set(tokens.rows) == {"tokens.clip_l", "tokens.clip_g"}
        for rows_NE in tokens.rows.values():
            assert rows_NE.dtype is torch.float32
            assert rows_NE.grad is not None
            assert bool(rows_NE.grad.any(dim=1).all())
        others = [p for encoder in base.text_encoders for n, p in encoder.named_parameters() if "rows_NE" not in n]
        assert others
        assert all(parameter.grad is None for parameter in others)
        with torch.no_grad():
            tokens.rows["tokens.clip_g"][1] += 1.0
        assert not torch.equal(heard(base, spoken(spec, SAID)), first)
        assert torch.equal(heard(base, PLAIN), plain)
    after = state_of(tiny_base)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(heard(tiny_base, PLAIN), plain)
    assert not any(encoder._forward_pre_hooks for encoder in tiny_base.text_encoders)


def test_taken_off_whatever_happens(tiny_base: BaseModel) -> None:
    spec, before = spec_with(), state_of(tiny_base).keys()
    with pytest.raises(RuntimeError, match="boom"), add_tokens(taught(tiny_base, spec), spec):
        raise RuntimeError("boom")
    assert state_of(tiny_base).keys() == before


def test_their_first_values_are_a_function_of_the_seed_with_the_spread_of_the_bases(tiny_base: BaseModel) -> None:
    def rows(**changes: Any) -> dict[str, torch.Tensor]:
        spec = spec_with(num_new_tokens_per_abstraction=16, **changes)
        with add_tokens(taught(tiny_base, spec), spec) as tokens:
            return {name: row.detach().clone() for name, row in tokens.rows.items()}

    one, same, other = rows(), rows(), rows(seed=8)
    for number, name in enumerate(("tokens.clip_l", "tokens.clip_g")):
        spread = tiny_base.text_encoders[number].get_input_embeddings().weight.std()
        assert torch.equal(one[name], same[name])
        assert not torch.equal(one[name], other[name])
        shape = tuple(one[name].shape)
        assert shape == (16, tiny_base.text_encoders[number].config.hidden_size)
        wanted = normal(7, "token-init", name.removeprefix("tokens."), shape=shape) * spread
        torch.testing.assert_close(one[name], wanted)
    assert not torch.equal(one["tokens.clip_l"], one["tokens.clip_g"])


def test_or_those_of_words_that_are_there_already(tiny_base: BaseModel) -> None:
    """Said with such tokens a caption is heard as with the word itself."""
    spec = spec_with(initializer_concept="dog", num_new_tokens_per_abstraction=1)
    base = taught(tiny_base, spec)
    assert len(base.tokenizers[0]("dog", add_special_tokens=False).input_ids) == 1
    wanted = heard(tiny_base, "a photo of dog")
    with add_tokens(base, spec):
        assert torch.equal(heard(base, spoken(spec, "a photo of TOK")), wanted)
    long = spec_with(initializer_concept="dog dog dog", num_new_tokens_per_abstraction=2)
    with pytest.raises(WorkloadFailed, match="3 tokens") as refused:
        add_tokens(taught(tiny_base, long), long)
    assert refused.value.faults[0].where == "spec.initializer_concept"


def test_the_pooled_output_stays_that_of_the_end_mark(tiny_base: BaseModel) -> None:
    """SDXL's second text encoder takes the highest id of a caption for its end; a new token's id would be higher."""
    spec = spec_with(initializer_concept="dog", num_new_tokens_per_abstraction=1)
    base = taught(tiny_base, spec)
    second = tiny_base.text_encoders[1]
    inner = getattr(second, "text_model", second)
    own = inner.eos_token_id
    inner.eos_token_id = 2  # as in the config of SDXL's
    try:
        wanted = heard(tiny_base, "dog in a photo")
        with add_tokens(base, spec):
            assert torch.equal(heard(base, spoken(spec, "TOK in a photo")), wanted)
    finally:
        inner.eos_token_id = own


def test_after_each_update_they_are_taken_back_to_the_spread_as_in_the_advanced_script(tiny_base: BaseModel) -> None:
    spec = spec_with()
    with add_tokens(taught(tiny_base, spec), spec) as tokens:
        rows_NE = tokens.rows["tokens.clip_l"]
        with torch.no_grad():
            rows_NE.mul_(3.0)
        before = rows_NE.detach().clone()
        tokens.settle()
        spread = tiny_base.text_encoders[0].get_input_embeddings().frozen.weight.std()
        torch.testing.assert_close(rows_NE.detach(), before * (spread / before.std()) ** 0.1)
        for _ in range(100):
            tokens.settle()
        torch.testing.assert_close(rows_NE.std(), spread, rtol=1e-3, atol=0)


# ---- files


def trained(base: BaseModel, spec: TrainSpec) -> dict[str, torch.Tensor]:
    with add_tokens(base, spec) as tokens, add_adapters(base, spec) as adapters:
        return adapters.tensors() | {
            name: normal(3, "trained", name, shape=tuple(row.shape)) for name, row in tokens.rows.items()
        }


def test_bundled_in_the_kohya_file_by_what_a_prompt_says(tiny_base: BaseModel, tmp_path: Path) -> None:
    spec = spec_with(token_abstraction="TOK,PAINT", rank=2)
    tensors = trained(taught(tiny_base, spec), spec)
    facts = facts_of(spec, step=1, layers_per_block=tiny_base.unet.config.layers_per_block)
    content = load_file(write_kohya(tmp_path / "lora.safetensors", tensors, facts, dtype="float32"))
    bundled = {name: tensor for name, tensor in content.items() if name.startswith("bundle_emb.")}
    names = {f"{word}.{which}" for word in ("TOK", "PAINT") for which in ("clip_l", "clip_g")}
    assert set(bundled) == {f"bundle_emb.{name}" for name in names}
    for which in ("clip_l", "clip_g"):
        rows_NE = tensors[f"tokens.{which}"]
        assert torch.equal(bundled[f"bundle_emb.TOK.{which}"], rows_NE[:2])
        assert torch.equal(bundled[f"bundle_emb.PAINT.{which}"], rows_NE[2:])
    layers = sum(name.startswith("unet.") for name in tensors) // 2
    assert len(content) == len(bundled) + 3 * layers
    with safe_open(tmp_path / "lora.safetensors", framework="pt") as opened:
        assert "bundle_emb" not in json.dumps(opened.metadata())


def test_diffusers_loads_the_embeddings_and_hears_what_was_trained(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path
) -> None:
    spec = spec_with()
    base = taught(tiny_base, spec)
    tensors = trained(base, spec)
    content = load_file(write_embeddings(tmp_path / "embeddings.safetensors", tensors, dtype="float32"))
    assert set(content) == {"clip_l", "clip_g"}
    with add_tokens(base, spec) as tokens, torch.no_grad():
        for name, row in tokens.rows.items():
            row.copy_(tensors[name])
        wanted = encode(base.tokenizers, base.text_encoders, [spoken(spec, SAID)])
    pipeline = StableDiffusionXLPipeline.from_pretrained(tiny_folder)
    names = [*words_of(spec)["TOK"]]
    pipeline.load_textual_inversion(
        content["clip_l"], token=names, text_encoder=pipeline.text_encoder, tokenizer=pipeline.tokenizer
    )
    pipeline.load_textual_inversion(
        content["clip_g"], token=names, text_encoder=pipeline.text_encoder_2, tokenizer=pipeline.tokenizer_2
    )
    prompt_BLD, _, pooled_BP, _ = pipeline.encode_prompt(spoken(spec, SAID), do_classifier_free_guidance=False)
    torch.testing.assert_close(prompt_BLD, wanted.prompt_BLD)
    torch.testing.assert_close(pooled_BP, wanted.pooled_BP)
    plain, *_ = pipeline.encode_prompt(PLAIN, do_classifier_free_guidance=False)
    assert not torch.allclose(plain, prompt_BLD)


def test_write_of_embeddings_without_new_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no new tokens"):
        write_embeddings(tmp_path / "none", {"unet.x.lora_A.weight": torch.ones(1, 1)})


# ---- what contradicts


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"train_text_encoder_ti": False, "initializer_concept": "dog"}, "initializer_concept"),
        ({"train_text_encoder_ti": False, "num_new_tokens_per_abstraction": 4}, "num_new_tokens_per_abstraction"),
        ({"train_text_encoder_ti": False, "token_abstraction": "S"}, "token_abstraction"),
        ({"train_text_encoder_ti": False, "train_text_encoder_ti_frac": 0.7}, "train_text_encoder_ti_frac"),
        ({"token_abstraction": "TOK,TOKEN"}, "token_abstraction"),
        ({"token_abstraction": "TOK,TOK"}, "token_abstraction"),
        ({"token_abstraction": "a.b"}, "token_abstraction"),
        ({"token_abstraction": "<s0>"}, "token_abstraction"),
        ({"with_prior_preservation": True, "class_prompt": "a TOK"}, "class_prompt"),
        ({"shuffle_caption": True, "caption_separator": "O"}, "token_abstraction"),
        ({"optimizer": "adamw_schedule_free"}, "train_text_encoder_ti"),
        ({"optimizer": "prodigy", "learning_rate": 1.0, "text_encoder_lr": 1.0}, "train_text_encoder_ti_frac"),
        ({"optimizer": "prodigy", "learning_rate": 1.0, "train_text_encoder_ti_frac": 1.0}, "text_encoder_lr"),
    ],
)
def test_conflicting_token_training_field_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        spec_with(**fields)


def test_normalized_it_is_a_list_and_can_be_read_again() -> None:
    spec = spec_with(token_abstraction=" TOK , PAINT ", init_word="dog")
    assert spec.token_abstraction == ("TOK", "PAINT")
    assert TrainSpec.model_validate(spec.model_dump(mode="json")) == spec
