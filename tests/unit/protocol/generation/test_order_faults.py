"""Faults of orders, all at once and with their places."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.domain.errors import InvalidInput
from giornata.protocol.generation.checks.named_models import named_models, uploaded_pictures, with_objects
from giornata.protocol.generation.checks.prompt_faults import MOST_FAULTS
from giornata.protocol.generation.expand import picture_params, planned_pictures
from giornata.protocol.generation.schedulers import all_schedulers

SHA = "0" * 64
NEAR = "there is no such scheduler; near names are dpmpp_2m, dpm_2, dpmpp_2s; it is 'dpmp_2m'"


def faults(kind: str = "generate", **fields: Any) -> dict[str, str]:
    _, found = parse_spec(kind, {"model": "base", **fields}, as_written=True)
    return {fault.where: fault.message for fault in found}


def test_faults_of_fields_and_of_prompts_are_told_together() -> None:
    found = faults(
        prompts=["fine", "(open", "{a|[b}", "__size__", "<lora:x:y>"],
        negative_prompt="<lora:ink:1>",
        width=513,
        scheduler="dpmp_2m",
        wildcards={"none": [], "one": ["__two__"], "two": ["a", "__one__"], "three": ["a)"]},
    )
    assert found == {
        "spec.width": "input should be a multiple of 8; it is 513",
        "spec.scheduler": NEAR,
        "spec.prompts.1": "character 1: ( is not closed",
        "spec.prompts.2": "character 4: [ is not closed",
        "spec.prompts.3": "character 1: there is no list for __size__",
        "spec.prompts.4": "character 1: <lora:x:y> names no LoRA with a weight",
        "spec.negative_prompt": "names a LoRA",
        "spec.wildcards.none": "is empty",
        "spec.wildcards.one": "names itself, or a list that does",
        "spec.wildcards.two": "names itself, or a list that does",
        "spec.wildcards.three.0": "character 2: ) closes nothing",
    }


def test_sampler_and_schedule_in_two_fields_are_one_scheduler() -> None:
    parsed, found = parse_spec(
        "generate",
        {"model": "m", "prompts": ["a"], "sampler_name": "dpmpp_2m", "scheduler": "karras"},
        as_written=True,
    )
    assert found == []
    assert parsed is not None
    assert parsed.model_dump()["scheduler"] == "dpmpp_2m_karras"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"prompts": ["a"] * 10_001}, "spec.prompts"),
        ({"prompts": ["a"], "num_images_per_prompt": 10_001}, "spec.num_images_per_prompt"),
        ({"prompts": ["a"] * 73, "num_images_per_prompt": 137}, "spec.num_images_per_prompt"),
        ({"prompts": ["a"] * 5000, "pictures": [{"prompt": "a"}] * 5001}, "spec.num_images_per_prompt"),
        ({}, "spec.prompts"),
        ({"pictures": [{"width": 512}]}, "spec.pictures"),
    ],
)
def test_order_has_one_to_ten_thousand_pictures_with_prompts(fields: dict[str, Any], where: str) -> None:
    assert list(faults(**fields)) == [where]


def test_ten_thousand_pictures_are_taken() -> None:
    assert faults(prompts=["a"] * 100, num_images_per_prompt=100) == {}


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"mask": SHA}, "spec.mask"),
        ({"quality": 50}, "spec.quality"),
        ({"image": SHA, "strength": 0.01}, "spec.strength"),
        ({"refiner": {"model": "r", "switch_at": 1}}, "spec.refiner.switch_at"),
        ({"refiner": {"model": "r"}, "image": SHA}, "spec.refiner"),
        ({"high_resolution": {"width": 512, "height": 512}}, "spec.high_resolution"),
        ({"high_resolution": {"width": 2048, "height": 2048, "strength": 0.01}}, "spec.high_resolution.strength"),
        ({"high_resolution": {"width": 2048, "height": 2048}, "refiner": {"model": "r"}}, "spec.high_resolution"),
        ({"high_resolution": {"width": 2048, "height": 2048}, "image": SHA}, "spec.high_resolution"),
        ({"controlnets": [{"name": "c", "image": SHA, "start": 0.5, "end": 0.5}]}, "spec.controlnets.0.start"),
        (
            {"controlnets": [{"name": "c", "image": SHA, "annotator_params": {"low": 1}}]},
            "spec.controlnets.0.annotator_params",
        ),
        ({"controlnets": [{"name": "c", "image": SHA, "annotator": "cany"}]}, "spec.controlnets.0.annotator"),
        (
            {
                "controlnets": [
                    {"name": "c", "image": SHA, "annotator": "canny", "annotator_params": {"low_threshold": 999}}
                ]
            },
            "spec.controlnets.0.annotator_params.low_threshold",
        ),
        ({"embeddings": [{"name": "a", "token": "x"}, {"name": "b", "token": "x"}]}, "spec.embeddings"),
    ],
)
def test_settings_that_contradict_each_other_are_told(fields: dict[str, Any], where: str) -> None:
    assert list(faults(prompts=["a"], **fields)) == [where]


@pytest.mark.parametrize(
    "fields",
    [
        {"image": SHA},
        {"image": SHA, "mask": SHA},
        {"refiner": {"model": "r"}},
        {"high_resolution": {"width": 2048, "height": 2048}},
    ],
)
def test_any_scheduler_goes_with_any_mode(fields: dict[str, Any]) -> None:
    for name in all_schedulers():
        assert faults(prompts=["a"], scheduler=name, **fields) == {}


def test_faults_of_an_order_of_annotations_are_told() -> None:
    _, found = parse_spec("preprocess", {"images": [SHA], "annotator": "cany"}, as_written=True)
    assert [fault.where for fault in found] == ["spec.annotator"]
    spec = {"images": [], "annotator": "canny", "prompts": ["a"]}
    _, found = parse_spec("preprocess", spec, as_written=True)
    assert {fault.where for fault in found} == {"spec.images", "spec.prompts"}
    params = {"low_threshold": 999}
    _, found = parse_spec("preprocess", {"images": [SHA], "annotator": "canny", "annotator_params": params})
    assert [fault.where for fault in found] == ["spec.annotator_params.low_threshold"]


def test_contradictions_are_told_beside_fields_that_cannot_be_read() -> None:
    entries = [{"prompt": "a", "width": "wide"}, {"prompt": "a", "strength": 0.01}, {"width": 64}]
    found = faults(prompts=["a"], image=SHA, quality=50, n="two", scheduler=7, sede=1, pictures=entries)
    assert list(found) == [
        *("spec.n", "spec.pictures.0.width", "spec.scheduler", "spec.sede"),
        *("spec.pictures", "spec.quality", "spec.pictures.1.strength"),
    ]
    assert found["spec.pictures"] == "pictures 2 have no prompt"


@pytest.mark.parametrize(
    ("fields", "unread"),
    [
        ({"image": "x", "mask": SHA}, "image"),
        ({"quality": 50, "image_format": "gif"}, "image_format"),
        ({"image": SHA, "strength": 0.02, "num_inference_steps": "80"}, "num_inference_steps"),
        ({"high_resolution": {"width": 1024, "height": 1024}, "height": "512"}, "height"),
        ({"high_resolution": {"width": 1024, "height": 1024}, "hieght": 512}, "hieght"),
        (
            {"high_resolution": {"width": 2048, "height": 2048, "strength": 0.01}, "steps": None},
            "steps",
        ),
        ({"prompts": [7]}, "prompts.0"),
        ({"prompts": 7, "pictures": 7}, "prompts"),
    ],
)
def test_field_that_cannot_be_read_contradicts_nothing(fields: dict[str, Any], unread: str) -> None:
    found = faults(**({"prompts": ["a"]} | fields))
    assert next(iter(found)) == f"spec.{unread}"
    assert all(where.removeprefix("spec.").partition(".")[0] in fields or unread in where for where in found)
    assert len(found) == 1 + ("pictures" in fields)


def test_contradiction_is_not_told_of_an_entry_that_cannot_be_read() -> None:
    entries = [{"prompt": "a", "image": 7}, {"prompt": "a", "width": 512}]
    assert list(faults(mask=SHA, pictures=entries)) == ["spec.pictures.0.image", "spec.pictures.1.mask"]


def test_wrong_values_of_axes_are_told_beside_fields_and_axes_that_cannot_be_read() -> None:
    axes = [
        {"field": "width", "values": [512, 513]},
        {"slot": "a", "field": "seed", "values": [1]},
        {"field": "guidance_scale", "values": [7, "high"]},
        {"field": "loras.0.weight", "values": [99]},
        {"field": "refiner.switch_at", "values": [0.5]},
        {"field": "mask", "values": [SHA]},
    ]
    found = faults("grid", prompt="a {b}", axes=axes, height="512", loras=[{"name": "l", "weight": "x"}], quality=50)
    assert list(found) == [
        *("spec.height", "spec.loras.0.weight", "spec.axes.1", "spec.axes.4", "spec.axes.mask"),
        *("spec.axes.quality", "spec.axes.2.values.1", "spec.axes.0.values.1"),
    ]


def test_wrong_values_of_axes_are_told_beside_a_wrong_number_of_cells() -> None:
    axes = [
        {"slot": "b", "values": ["x"]},
        {"field": "width", "values": [513, *range(512, 2048, 8)]},
        {"field": "seed", "values": list(range(1000))},
        {"field": "width", "values": [64]},
        {"field": "strength", "values": [7]},
    ]
    found = faults("grid", prompt="a", axes=axes)
    assert list(found) == ["spec.axes", "spec.axes.1.values.0", "spec.axes.4.values.0"]


def test_contradiction_of_an_entry_is_told_there_and_that_of_the_order_once() -> None:
    entries = [{"prompt": "a", "width": 512}, {"prompt": "a", "mask": SHA}]
    assert list(faults(prompts=["a"], quality=50, pictures=entries)) == ["spec.quality", "spec.pictures.1.mask"]


def test_setting_of_the_order_that_every_entry_completes_is_none() -> None:
    assert faults(mask=SHA, pictures=[{"prompt": "a", "image": SHA}]) == {}


def test_prompt_is_as_long_as_ten_chunks() -> None:
    found = faults(
        prompts=["word " * 750, "word " * 751, "a BREAK " * 10, "__long__ __long__", "__many__", "é" * 400],
        wildcards={"long": ["{a|" + "x " * 6000 + "}"], "many": ["{<lora:a:1>|" + "<lora:b:1>" * 17 + "}"]},
    )
    assert found == {
        "spec.prompts.1": "has up to 11 chunks of 75 tokens; at most 10 are taken",
        "spec.prompts.2": "has up to 11 chunks of 75 tokens; at most 10 are taken",
        "spec.prompts.3": "has up to 24001 characters as drawn; at most 20000 are taken",
        "spec.prompts.4": "has up to 17 LoRAs with those of the order; at most 16 are taken",
    }


def test_thousands_of_broken_prompts_are_told_in_short() -> None:
    _, found = parse_spec("generate", {"model": "m", "prompts": ["(a"] * 5000})
    assert len(found) == MOST_FAULTS + 1
    assert found[-1].message == "may have more faults in prompts"


def test_values_of_axes_are_held_to_their_fields() -> None:
    axes = [{"field": "width", "values": [511, 512]}, {"slot": "b", "values": ["(x", "y", "z]"]}]
    assert faults("grid", prompt="a {b}", axes=axes) == {
        "spec.prompt": "character 3: ( is not closed",
        "spec.axes.1.values.2": "character 4: ] closes nothing",
        "spec.axes.0.values.0": "width: input should be a multiple of 8; it is 511",
    }


def test_each_wrong_value_of_each_axis_is_told_at_its_place_beside_an_axis_that_leads_nowhere() -> None:
    axes = [
        {"field": "width", "values": [64, 65, 66]},
        {"field": "loras.1.weight", "values": [1]},
        {"field": "scheduler", "values": ["euler", "dpmp_2m"]},
        {"field": "loras.0.weight", "values": [11, 1]},
    ]
    assert faults("grid", prompt="a", axes=axes, loras=["l"]) == {
        "spec.axes.0.values.1": "width: input should be a multiple of 8; it is 65",
        "spec.axes.0.values.2": "width: input should be a multiple of 8; it is 66",
        "spec.axes.1": "loras.1.weight: the spec has no loras number 1, counted from 0",
        "spec.axes.2.values.1": f"scheduler: {NEAR}",
        "spec.axes.3.values.0": "loras.0.weight: input should be less than or equal to 10; it is 11",
    }


def test_weight_and_lora_of_a_prompt_may_be_slots() -> None:
    axes = [{"slot": "w", "values": [0.5, 1, "1.x"]}, {"slot": "style", "values": ["ink", "oil"]}]
    prompt = "(a:{w}) <lora:{style}:0.5>"
    assert faults("grid", prompt=prompt, axes=axes) == {
        "spec.axes.0.values.2": "character 3: the colon begins no weight"
    }
    axes[0]["values"] = [0.5, 1]
    parsed, found = parse_spec("grid", {"model": "m", "prompt": prompt, "axes": axes, "seed": 1})
    assert parsed is not None
    pictures = list(planned_pictures("grid", parsed.model_dump(mode="json")))
    assert found == []
    assert [(each.differs["prompt"], each.differs["loras"][0]["name"]) for each in pictures] == [
        ("(a:0.5)", "ink"),
        ("(a:0.5)", "oil"),
        ("(a:1)", "ink"),
        ("(a:1)", "oil"),
    ]


def test_lora_whose_name_is_several_slots_has_to_be_in_the_spec() -> None:
    axes = [{"slot": "x", "values": ["a", "b"]}, {"slot": "y", "values": ["c", "d"]}]
    spec = {"model": "m", "prompt": "<lora:{x}{y}:1>", "axes": axes, "seed": 1}
    with pytest.raises(InvalidInput, match="prompt_loras"):
        list(planned_pictures("grid", spec))
    assert len(list(planned_pictures("grid", spec | {"prompt_loras": {"bd": {"name": "n"}}}))) == 4


@pytest.mark.parametrize(
    ("axis", "where", "told"),
    [
        ({"field": "loras.1.weight", "values": [1]}, "spec.axes.0", "loras.1.weight: the spec has no loras number 1"),
        (
            {"field": "refiner.switch_at", "values": [0.5]},
            "spec.axes.0",
            "refiner.switch_at: the spec has no such",
        ),
        ({"slot": "c", "values": [1]}, "spec.axes", "axes name the slot c"),
        ({"slot": "a", "values": ["b"] * 500}, "spec.axes", "axes put 500 values into 5003 characters"),
        ({"field": "seed", "values": list(range(1000))}, "spec.axes", "axes make 16000 pictures"),
    ],
)
def test_axis_that_leads_nowhere_or_too_far_is_refused(axis: dict[str, Any], where: str, told: str) -> None:
    found = faults("grid", prompt="{a}" + " " * 5000, axes=[axis], n=16, loras=["l"])
    assert list(found) == [where]
    assert found[where].startswith(told)


@pytest.mark.parametrize("named", [{"slot": "b"}, {"field": "seed"}])
def test_two_axes_of_one_name_are_refused(named: dict[str, str]) -> None:
    found = faults("grid", prompt="{b}", axes=[{**named, "values": [1]}, {**named, "values": [2]}])
    [name] = named.values()
    assert found["spec.axes"].startswith(f"axes name {name} more than once")


@pytest.mark.parametrize("axis", [{"values": [1]}, {"slot": "b", "field": "seed", "values": [1]}])
def test_axis_has_a_slot_or_a_field(axis: dict[str, Any]) -> None:
    assert faults("grid", prompt="{b}", axes=[axis])["spec.axes.0"].startswith("an axis has either")


def test_models_and_pictures_of_a_spec_are_found_with_their_places() -> None:
    parsed, _ = parse_spec(
        "generate",
        {
            "model": "m",
            "vae": "v",
            "prompts": ["<lora:ink:1>"],
            "loras": ["l"],
            "refiner": {"model": "r"},
            "pictures": [{"prompt": "a", "model": "n", "controlnets": [{"name": "c", "image": SHA}], "image": SHA}],
        },
    )
    assert parsed is not None
    spec = parsed.model_dump(mode="json")
    assert [(each.where, each.role, each.use["name"]) for each in named_models(spec)] == [
        ("spec.model", "base", "m"),
        ("spec.vae", "vae", "v"),
        ("spec.loras.0", "lora", "l"),
        ("spec.refiner.model", "refiner", "r"),
        ("spec.prompt_loras.ink", "lora", "ink"),
        ("spec.pictures.0.model", "base", "n"),
        ("spec.pictures.0.controlnets.0", "controlnet", "c"),
    ]
    assert list(uploaded_pictures(spec)) == [("pictures.0.image", SHA), ("pictures.0.controlnets.0.image", SHA)]
    next(named_models(spec)).use["sha256"] = SHA
    assert spec["model"]["sha256"] == SHA


def test_models_of_a_spec_with_other_faults_are_found_wherever_they_are_named() -> None:
    spec = {
        "model": "m",
        "prompt": "a <lora:{style}:1> __w__",
        "wildcards": {"w": ["<lora:oil:1>", 7]},
        "prompt_loras": {"ink": "job_1"},
        "pictures": [{"model": "n", "loras": ["l"], "refiner": {"model": "r"}}, 7],
        "axes": [{"slot": "style", "values": ["ink", "pen"]}, {"field": "vae", "values": ["v", None]}, 7],
        "width": "x",
    }
    found = [(each.where, each.role, each.use["name"]) for each in named_models(with_objects(spec))]
    assert sorted(found) == [
        ("spec.axes.1.values.0", "vae", "v"),
        ("spec.model", "base", "m"),
        ("spec.pictures.0.loras.0", "lora", "l"),
        ("spec.pictures.0.model", "base", "n"),
        ("spec.pictures.0.refiner.model", "refiner", "r"),
        ("spec.prompt_loras.ink", "lora", "job_1"),
        ("spec.prompt_loras.oil", "lora", "oil"),
        ("spec.prompt_loras.pen", "lora", "pen"),
    ]


def test_checkpoints_of_an_axis_are_models() -> None:
    parsed, _ = parse_spec(
        "grid", {"model": "m", "prompt": "a", "loras": ["l"], "axes": [{"field": "loras.0", "values": ["x", "y"]}]}
    )
    assert parsed is not None
    places = [each.where for each in named_models(parsed.model_dump(mode="json"))]
    assert places[-2:] == ["spec.axes.0.values.0", "spec.axes.0.values.1"]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "{b}", "__x__", "(a", "loras.0", "seed"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "prompt", "slot", "field", "values", "image", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(
        ["prompt", "prompts", "pictures", "axes", "wildcards", "loras", "controlnets", "image", "width", "y"]
    ),
    ANYTHING,
    max_size=5,
)


@given(st.sampled_from(["generate", "grid"]), FIELDS)
def test_any_json_is_an_order_or_faults(kind: str, fields: dict[str, Any]) -> None:
    parsed, found = parse_spec(kind, {"model": "base", **fields}, as_written=True)
    assert (parsed is None) <= bool(found)
    list(uploaded_pictures(fields))
    list(named_models(fields))


@given(
    st.lists(
        st.fixed_dictionaries({"slot": st.just("b"), "values": st.lists(ANYTHING, min_size=1, max_size=3)})
        | st.fixed_dictionaries(
            {
                "field": st.sampled_from(
                    ["loras.0", "loras.0.weight", "model", "seed", "width", "controlnets", "vae", "prompt"]
                ),
                "values": st.lists(ANYTHING, min_size=1, max_size=3),
            }
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_axes_are_a_grid_or_faults(axes: list[dict[str, Any]]) -> None:
    spec = {"model": "base", "prompt": "a {b}", "axes": axes, "loras": ["l"], "seed": 1}
    parsed, found = parse_spec("grid", spec, as_written=True)
    if parsed is not None and not found:
        for picture in planned_pictures("grid", parsed.model_dump(mode="json")):
            picture_params("grid", parsed.model_dump(mode="json"), seed=picture.seed, differs=picture.differs)
