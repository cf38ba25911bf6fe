"""Orders turn into pictures: seeds, prompts as drawn, keys, and what differs."""

import json
import sys
from types import FrameType
from typing import Any

import pytest

from giornata.protocol.generation.checks.named_models import uploaded_pictures
from giornata.protocol.generation.expand import (
    PlannedPicture,
    base_key_of,
    batch_key_of,
    leased_params,
    picture_count,
    picture_params,
    planned_pictures,
)
from giornata.protocol.generation.grid import GridSpec, grid_cells
from giornata.protocol.generation.picture import MAX_SEED
from giornata.protocol.generation.specs import GenerateSpec
from giornata.protocol.specs import spec_type, total_steps


def stored(kind: str = "generate", **fields: Any) -> dict[str, Any]:
    """A spec as it is stored: every default written down."""
    spec = spec_type(kind)
    assert spec is not None
    return json.loads(spec.model_validate({"model": "base", "seed": 7, **fields}).model_dump_json())


def planned(kind: str = "generate", **fields: Any) -> list[PlannedPicture]:
    return list(planned_pictures(kind, stored(kind, **fields)))


VARIED = {
    "prompts": ["a (cat:1.2)", "a {red|blue} __animal__ <lora:ink:0.5>"],
    "negative_prompt": "{blurry|dark}",
    "num_images_per_prompt": 2,
    "wildcards": {"animal": ["dog", "{big|small} horse"]},
    "pictures": [
        {"prompt": "b", "width": 512, "height": 768, "seed": 3},
        {"prompt": "c", "model": "other", "vae": "v", "loras": [{"name": "l", "weight": 0.3}]},
        {"prompt": "d", "image": "1" * 64, "mask": "2" * 64, "strength": 0.5, "num_inference_steps": 9},
        {"prompt": "e", "high_resolution": {"width": 2048, "height": 2048}},
        {"prompt": "f", "controlnets": [{"name": "c", "image": "3" * 64}], "refiner": {"model": "r"}},
    ],
}


def test_order_has_each_prompt_so_many_times_then_each_entry() -> None:
    pictures = planned(**VARIED)
    assert [picture.number for picture in pictures] == list(range(14))
    assert picture_count("generate", stored(**VARIED)) == total_steps("generate", stored(**VARIED)) == 14
    assert [picture.differs["prompt"] for picture in pictures[:2]] == ["a (cat:1.2)"] * 2
    assert [picture.differs["prompt"] for picture in pictures[4::2]] == ["b", "c", "d", "e", "f"]


def test_keys_and_work_are_those_of_each_picture_made_whole() -> None:
    spec = stored(**VARIED)
    for picture in planned_pictures("generate", spec):
        params = picture_params("generate", spec, seed=picture.seed, differs=picture.differs)
        assert picture.batch_key == batch_key_of(params)
        assert picture.base_key == base_key_of(params)
        assert picture.pixel_steps == params.pixel_steps()
        assert params.seed == picture.seed
    assert len({picture.batch_key for picture in planned_pictures("generate", spec)}) == 6


def test_expansion_is_a_function_of_the_stored_spec() -> None:
    assert planned(**VARIED) == planned(**VARIED)
    assert json.loads(json.dumps(planned(**VARIED)[3].differs)) == planned(**VARIED)[3].differs


def test_seeds_count_up_and_an_entry_may_have_its_own() -> None:
    assert [picture.seed for picture in planned(**VARIED)] == [7, 8, 9, 10, 3, 4, 13, 14, 15, 16, 17, 18, 19, 20]
    assert [picture.seed for picture in planned(prompts=["a"], n=2, seed=MAX_SEED)] == [MAX_SEED, 0]


def test_prompt_as_drawn_follows_the_seed_of_the_picture() -> None:
    many = planned(prompts=["{a|b} __x__"], n=300, wildcards={"x": ["c", "d"]})
    assert {picture.differs["prompt"] for picture in many} == {"a c", "a d", "b c", "b d"}
    again = planned(prompts=["{a|b} __x__"], wildcards={"x": ["c", "d"]}, seed=many[250].seed)
    assert again[0].differs == many[250].differs


def test_negative_prompt_is_recorded_only_where_it_differs() -> None:
    assert "negative_prompt" not in planned(prompts=["a"], negative_prompt="b")[0].differs
    assert planned(prompts=["a"], negative_prompt="{b|b}")[0].differs["negative_prompt"] == "b"


def test_lora_of_a_prompt_joins_those_of_the_order() -> None:
    spec = stored(prompts=["a <lora:ink:0.4:0.8>", "b"], loras=["base-lora"])
    assert spec["prompt_loras"] == {"ink": {"name": "ink", "sha256": None}}
    spec["prompt_loras"]["ink"]["sha256"] = "5" * 64
    first, second = planned_pictures("generate", spec)
    params = picture_params("generate", spec, seed=1, differs=first.differs)
    assert params.prompt == "a"
    assert [(lora.name, lora.weight, lora.text_encoder_weight) for lora in params.loras] == [
        ("base-lora", 1.0, None),
        ("ink", 0.8, 0.4),
    ]
    assert params.loras[1].sha256 == "5" * 64
    assert second.differs == {"prompt": "b"}


def test_lora_of_a_wildcard_line_and_of_an_entry_is_written_into_the_spec() -> None:
    spec = GenerateSpec.model_validate(
        {"model": "m", "pictures": [{"prompt": "<lora:a:1>"}], "wildcards": {"x": ["<lora:b:1>"]}}
    )
    assert sorted(spec.prompt_loras) == ["a", "b"]


def test_spec_without_a_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="set at submission"):
        planned(prompts=["a"], seed=None)


GRID = {
    "prompt": "a {color} {animal}",
    "loras": [{"name": "old", "sha256": "1" * 64, "weight": 0.7}],
    "axes": [
        {"slot": "animal", "values": ["cat", "dog"]},
        {"field": "loras.0", "values": ["job_1@100", "job_1@200"], "label": "checkpoint"},
        {"slot": "color", "values": ["red", "(blue:1.2)"]},
        {"field": "guidance_scale", "values": [3, 7.5]},
    ],
    "repeats": 3,
}


def test_grid_has_every_combination_and_equal_seeds_in_each_repeat() -> None:
    pictures = planned("grid", **GRID)
    assert len(pictures) == picture_count("grid", stored("grid", **GRID)) == 48
    assert [picture.seed for picture in pictures] == [7, 8, 9] * 16
    assert len({json.dumps(dict(picture.differs)) for picture in pictures}) == 16
    assert pictures[0].differs["prompt"] == "a red cat"
    assert pictures[-1].differs["prompt"] == "a (blue:1.2) dog"


def test_cells_are_labeled_in_the_order_of_the_pictures() -> None:
    cells = list(grid_cells(GridSpec.model_validate({"model": "m", **GRID})))
    assert cells[0].labels == ("cat", "job_1@100", "red", "3")
    assert cells[-1].labels == ("dog", "job_1@200", "(blue:1.2)", "7.5")
    assert [(cell.number, cell.repeat) for cell in cells[3:5]] == [(3, 0), (4, 1)]
    assert [axis.title for axis in GridSpec.model_validate({"model": "m", **GRID}).axes][1] == "checkpoint"


def test_model_of_an_axis_keeps_the_weight_and_not_the_hash_of_the_old_one() -> None:
    (first, *_) = planned("grid", **GRID)
    assert first.differs["loras"] == [{"name": "job_1@100", "weight": 0.7, "text_encoder_weight": None}]


def test_seed_may_be_an_axis() -> None:
    pictures = planned("grid", prompt="a", axes=[{"field": "seed", "values": [50, 90]}], repeats=2)
    assert [picture.seed for picture in pictures] == [50, 51, 90, 91]


def test_ten_thousand_pictures_of_equal_settings_are_checked_once() -> None:
    made = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal made
        made += event == "call" and frame.f_code is picture_params.__code__

    spec = stored(prompts=[f"a cat {number}" for number in range(5000)], n=2)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        pictures = list(planned_pictures("generate", spec))
    finally:
        sys.setprofile(before)
    assert len(pictures) == 10_000
    assert made == 1


def test_order_of_annotations_has_one_picture_of_each_image() -> None:
    spec = {"images": ["1" * 64, "2" * 64], "annotator": "canny", "image_format": "webp"}
    pictures = list(planned_pictures("preprocess", spec))
    assert picture_count("preprocess", spec) == total_steps("preprocess", spec) == 2
    whole = [leased_params("preprocess", spec, seed=each.seed, differs=each.differs) for each in pictures]
    assert [each.files() for each in whole] == [{"1" * 64: "picture"}, {"2" * 64: "picture"}]
    assert len({each.batch_key for each in pictures}) == 1
    (other,) = planned_pictures("preprocess", {"images": ["1" * 64], "annotator": "depth"})
    assert other.batch_key != pictures[0].batch_key
    assert dict(uploaded_pictures(spec)) == {"images.0": "1" * 64, "images.1": "2" * 64}
