"""The page that goes with a LoRA."""

import json

import pytest

from giornata.diffusion.families import SD15
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.files.model_card import hashes_of, model_card, recipe_sha256
from giornata.protocol.specs import TrainSpec

FILES = ("lora-kohya.safetensors", "pytorch_lora_weights.safetensors")


def spec_of(**fields):
    defaults = {"model": "owner/base", "dataset": "ds_1", "seed": 5, "instance_prompt": "a photo of sks toy"}
    return TrainSpec.model_validate(defaults | fields)


def card_of(spec, files=FILES, **more):
    facts = facts_of(spec, step=7, captions=["toy, red", "toy"])
    return model_card(
        facts,
        files=files,
        parameters=1234567,
        extra=hashes_of(spec, data_sha256="d" * 64, base_sha256="b" * 64),
        **more,
    )


def head_of(card):
    """The head's plain fields; each is one line, and its strings are JSON."""
    lines = card.split("---\n")[1].splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def test_the_head_says_what_hubs_ask_for():
    head = head_of(card_of(spec_of()))
    assert (head["library_name"], head["license"]) == ("diffusers", "other")
    assert json.loads(head["base_model"]) == "owner/base"
    assert json.loads(head["instance_prompt"]) == "a photo of sks toy"
    assert "- lora\n" in card_of(spec_of())


def test_words_of_a_user_break_neither_the_head_nor_the_page():
    nasty = 'a "photo": of\n---\n# sks `toy` | x'
    card = card_of(spec_of(instance_prompt=nasty))
    assert json.loads(head_of(card)["instance_prompt"]) == nasty
    assert card.count("\n---\n") == 1 and "\n# sks" not in card


def test_a_local_base_is_named_without_its_path_and_is_no_hub_id():
    card = card_of(spec_of(model="/home/somebody/models/base"))
    assert "base_model" not in head_of(card)
    assert "/home" not in card and "`base`" in card


def test_the_page_has_everything_that_one_needs_to_use_it():
    card = card_of(spec_of(rank=8))
    for words in (
        *FILES,
        "a photo of sks toy",
        "1,234,567",
        "| seed | 5 |",
        "8, 8",
        "d" * 64,
        "b" * 64,
        "`toy` (2)",
        "ComfyUI",
    ):
        assert words in card
    assert "ComfyUI" not in card_of(spec_of(), files=FILES[1:])


@pytest.mark.parametrize(
    "beside",
    [
        {"checkpointing_steps": 3},
        {"checkpoints_keep_latest": 9},
        {"dataset": "ds_2"},
        {"output_formats": ["kohya"]},
        {"model_card": False},
        {"sample_prompts": ["a toy"], "sample_steps": 9},
        {"report_to": ["wandb"], "wandb_project": "toys", "wandb_api_key_secret": "WANDB"},
        {"hub_token_secret": "HUB"},
    ],
)
def test_recipe_hash_ignores_spec_fields_that_no_weight_depends_on(beside):
    assert recipe_sha256(spec_of(**beside)) == recipe_sha256(spec_of())


@pytest.mark.parametrize("other", [{"seed": 6}, {"rank": 8}, {"model": "owner/other"}, {"instance_prompt": "a toy"}])
def test_recipe_hash_changes_with_seed_rank_model_and_prompt(other):
    assert recipe_sha256(spec_of(**other)) != recipe_sha256(spec_of())


def test_the_specs_hash_is_the_same_wherever_the_base_lies():
    assert recipe_sha256(spec_of(model="/a/base")) == recipe_sha256(spec_of(model="/b/c/base"))


def test_a_card_names_the_pipeline_of_its_family():
    sdxl = card_of(spec_of())
    facts = facts_of(spec_of(), step=7, captions=["toy"], family=SD15)
    sd15 = model_card(facts, files=FILES, parameters=1, extra={})
    assert "import StableDiffusionXLPipeline" in sdxl and "- stable-diffusion-xl\n" in sdxl
    assert "import StableDiffusionPipeline" in sd15 and "- stable-diffusion\n" in sd15
    assert "XL" not in sd15 and "-xl" not in sd15


def test_a_card_shows_the_samples_only_when_there_are_some():
    nasty = "a `toy` | red\n# big"
    spec = spec_of(sample_prompts=["a toy", nasty])
    card = card_of(spec, samples="samples.png")
    assert "](samples.png)\n\n- `a toy`\n- `a 'toy' / red # big`\n" in card
    assert card.index("## Samples") < card.index("## Trigger words")
    assert "samples" not in card_of(spec).lower()
