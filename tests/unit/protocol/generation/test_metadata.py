"""Result files say how they were made, to A1111, to ComfyUI and to us."""

import json
import re
import zlib
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.diffusion.files.picture_file import picture_bytes
from giornata.domain.errors import InvalidInput
from giornata.domain.generation.prompt_grammar import parse
from giornata.protocol.generation.expand import picture_params, planned_pictures
from giornata.protocol.generation.metadata import picture_params_of
from giornata.protocol.generation.picture import ModelUse, PictureParams
from giornata.protocol.generation.schedulers import all_schedulers
from giornata.protocol.generation.texts.a1111_text import a1111_text, fields_of_a1111, pairs_of
from giornata.protocol.generation.texts.comfyui_nodes import NODE_TYPES
from giornata.protocol.generation.texts.comfyui_workflow import comfyui_prompt
from giornata.protocol.generation.texts.image_text import texts_of

SHA = "ab" * 32
FULL = {
    "model": {"name": "hub/some-model", "sha256": SHA},
    "vae": {"name": "folder/good.safetensors", "sha256": "cd" * 32},
    "prompt": 'a "red" (cat:1.3), naïve 猫: [b]\nsecond line',
    "negative_prompt": "blurry, Steps: 3",
    "width": 512,
    "height": 768,
    "num_inference_steps": 25,
    "guidance_scale": 6.5,
    "scheduler": "dpmpp_2m_karras",
    "seed": 2**53 - 1,
    "clip_skip": 1,
    "loras": [{"name": "job_1@500", "sha256": "ef" * 32, "weight": 0.5}, {"name": "l2", "text_encoder_weight": 0.2}],
    "embeddings": [{"name": "easy", "token": "neg", "sha256": "12" * 32}],
    "high_resolution": {"width": 1024, "height": 1536, "strength": 0.4},
    "controlnets": [{"name": "canny", "image": "34" * 32, "annotator": "canny"}],
}
MADE_WITH = {"torch": "2.0", "device": "cpu"}


def params(**changes: Any) -> PictureParams:
    return PictureParams.model_validate({**FULL, **changes})


def written(**changes: Any) -> bytes:
    image = Image.linear_gradient("L").resize((32, 24))
    return picture_bytes(image, params(**changes), made_with=MADE_WITH)


def a1111_reading(text: str) -> dict[str, str]:
    """A reader written for this test from the format as it is published: a scanner of characters."""
    *lines, last = text.split("\n")
    at = next(number for number, line in enumerate(lines) if line.startswith("Negative prompt: "))
    found = {"prompt": "\n".join(lines[:at]), "negative": "\n".join(lines[at:]).removeprefix("Negative prompt: ")}
    while last:
        name, _, last = last.partition(": ")
        if last.startswith('"'):
            value, end = json.JSONDecoder().raw_decode(last)
            last = last[end:].removeprefix(", ")
        else:
            value, _, last = last.partition(", ")
        found[name] = value
    return found


@pytest.mark.parametrize("image_format", ["png", "jpeg", "webp"])
def test_file_has_the_texts_in_every_format(image_format: str) -> None:
    data = written(image_format=image_format, quality=95 if image_format == "png" else 80)
    texts = texts_of(data)
    assert set(texts) == {"parameters", "prompt", "workflow", "giornata"}
    opened = Image.open(BytesIO(data))
    assert opened.size == (32, 24)
    if image_format == "png":
        assert opened.text == texts
    else:
        exif = opened.getexif()
        assert exif[0x010F] == f"workflow:{texts['workflow']}"
        assert exif[0x0110] == f"prompt:{texts['prompt']}"
        comment = exif.get_ifd(0x8769)[0x9286]
        assert comment.removeprefix(b"UNICODE\x00").decode("utf-16-be") == texts["parameters"]


@pytest.mark.parametrize("image_format", ["png", "jpeg", "webp"])
def test_settings_are_read_back_whole(image_format: str) -> None:
    reading = picture_params_of(written(image_format=image_format))
    spec, faults = parse_spec("generate", reading.fields, as_written=True)
    assert faults == []
    assert spec is not None
    stored = spec.model_dump(mode="json")
    (picture,) = planned_pictures("generate", stored)
    again = picture_params("generate", stored, seed=picture.seed, differs=picture.differs)
    assert again == params(image_format=image_format)
    assert reading.notes == ()


def test_file_without_metadata_says_nothing() -> None:
    for image_format in ("png", "jpeg", "webp"):
        data = written(image_format=image_format, metadata=False)
        assert texts_of(data) == {}
        with pytest.raises(ValueError, match="says nothing"):
            picture_params_of(data)


def test_equal_pictures_are_equal_files() -> None:
    assert written() == written()


def test_our_settings_have_the_hash_of_every_model_and_versions() -> None:
    told = json.loads(texts_of(written())["giornata"])
    assert told["made_with"] == MADE_WITH
    assert told["params"]["seed"] == 2**53 - 1
    assert told["params"]["model"]["sha256"] == SHA
    assert [lora["sha256"] for lora in told["params"]["loras"]] == ["ef" * 32, None]


def test_a1111s_text_is_read_by_an_independent_parser() -> None:
    told = a1111_reading(texts_of(written())["parameters"])
    assert told["prompt"] == FULL["prompt"] + " <lora:job_1@500:0.5> <lora:l2:0.2:1>"
    assert told["negative"] == "blurry, Steps: 3"
    expected = {
        "Steps": "25",
        "Sampler": "DPM++ 2M",
        "Schedule type": "Karras",
        "CFG scale": "6.5",
        "Seed": str(2**53 - 1),
        "Size": "512x768",
        "Model hash": "ab" * 5,
        "Model": "some-model",
        "VAE": "good",
        "Clip skip": "2",
        "Denoising strength": "0.4",
        "Hires resize": "1024x1536",
        "Lora hashes": f"job_1@500: {'ef' * 5}",
        "TI hashes": f"easy: {'12' * 5}",
        "RNG": "CPU",
    }
    assert {name: told[name] for name in expected} == expected
    assert told["ControlNet 0"].startswith("Module: canny, Model: canny, Weight: 1")


A1111_TEXT = r"""a {red|blue} cat, __hair__ \(x\), <lora:ink:0.8>
Negative prompt: bad
Steps: 20, Sampler: DPM++ 2M SDE, Schedule type: Karras, CFG scale: 7.5, Seed: 4, Size: 512x640, Model hash: 1a2b, Model: dream, Clip skip: 2, Hires upscale: 1.5, Hires steps: 10, Denoising strength: 0.55, Lora hashes: "ink: 0a, b: 0c", Refiner: xl_refiner [7440042bbd], Refiner switch at: 0.7, Version: v1.9.4"""  # noqa: E501


def test_a1111s_own_file_becomes_fields_of_a_spec() -> None:
    info = PngInfo()
    info.add_text("parameters", A1111_TEXT)
    out = BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG", pnginfo=info)
    reading = picture_params_of(out.getvalue())
    assert reading.fields == {
        "prompts": [r"a \{red\|blue\} cat, \_\_hair__ \(x\), <lora:ink:0.8>"],
        "negative_prompt": "bad",
        "num_inference_steps": 20,
        "guidance_scale": 7.5,
        "seed": 4,
        "width": 512,
        "height": 640,
        "clip_skip": 1,
        "high_resolution": {"width": 768, "height": 960, "strength": 0.55, "num_inference_steps": 10},
        "scheduler": "dpmpp_2m_sde_karras",
        "model": {"name": "dream"},
        "refiner": {"model": {"name": "xl_refiner"}, "switch_at": 0.7},
    }
    assert reading.notes == ("A1111 drew the noise on its GPU, so the picture will look alike and not be the same",)
    assert parse(reading.fields["prompts"][0].replace("<lora:ink:0.8>", "")) != ()
    spec, _ = parse_spec("generate", {**reading.fields, "refiner": None})
    (picture,) = planned_pictures("generate", spec.model_dump(mode="json"))
    (section,) = parse(picture.differs["prompt"])
    assert "".join(segment.text for segment in section) == "a {red|blue} cat, __hair__ (x),"


A1111_AUTOMATIC = {  # by `samplers_k_diffusion` of its modules/sd_samplers_kdiffusion.py, and other samplers
    "DPM++ 2M": "dpmpp_2m_karras",
    "DPM++ SDE": "dpmpp_sde_karras",
    "DPM++ 2M SDE": "dpmpp_2m_sde_exponential",
    "DPM++ 2M SDE Heun": "dpmpp_2m_sde_heun_exponential",
    "DPM++ 2S a": None,
    "DPM++ 3M SDE": "dpmpp_3m_sde_exponential",
    "Euler a": "euler_ancestral",
    "Euler": "euler",
    "LMS": "lms",
    "Heun": "heun",
    "DPM2": "dpm_2_karras",
    "DPM2 a": "dpm_2_ancestral_karras",
    "DPM fast": None,
    "DPM adaptive": None,
    "Restart": None,
    "DDIM": "ddim",
    "PLMS": "pndm",
    "UniPC": "uni_pc",
    "LCM": "lcm",
}


@pytest.mark.parametrize(("sampler", "name"), A1111_AUTOMATIC.items())
def test_automatic_schedule_of_a1111_is_the_one_that_it_takes_for_the_sampler(sampler: str, name: str | None) -> None:
    text = f"a\nSteps: 5, Sampler: {sampler}, Schedule type: Automatic, RNG: CPU, Version: v1.9.4"
    fields, notes = fields_of_a1111(text)
    assert fields.get("scheduler") == name
    assert bool(notes) is (name is None)
    earlier, _ = fields_of_a1111(text.replace(", Schedule type: Automatic", ""))
    assert earlier.get("scheduler") in {None, name, (name or "").removesuffix("_karras").removesuffix("_exponential")}
    assert not str(earlier.get("scheduler")).endswith(("karras", "exponential"))


@pytest.mark.parametrize("name", all_schedulers())
def test_a1111_takes_the_schedule_of_our_text_for_itself_or_for_its_uniform_one(name: str) -> None:
    params = PictureParams(model=ModelUse(name="m"), prompt="a", width=64, height=64, seed=1, scheduler=name)
    fields, _ = fields_of_a1111(a1111_text(params, version="v1.9.4"))
    would_be_another = {"dpmpp_2m", "dpmpp_2m_sde", "dpmpp_2m_sde_heun", "dpmpp_3m_sde", "dpm_2", "dpm_2_ancestral"}
    assert fields["scheduler"] == (f"{name}_linspace" if name in would_be_another else name)


def test_text_of_an_earlier_version_of_ours_has_the_base_models_own_schedule() -> None:
    fields, _ = fields_of_a1111("a\nSteps: 5, Sampler: DPM++ 2M, Schedule type: Automatic, Version: giornata 0.2.0")
    assert fields["scheduler"] == "dpmpp_2m"


def test_a1111_sampler_and_init_image_that_cannot_be_repeated_are_noted() -> None:
    fields, notes = fields_of_a1111("a\nSteps: 5, Sampler: Restart, Denoising strength: 0.6, RNG: CPU")
    assert fields["strength"] == 0.6
    assert "scheduler" not in fields
    assert [note.split(":")[0] for note in notes] == [
        "Sampler Restart",
        "the picture it began from is not in the file; give it as image",
    ]


def test_each_setting_of_a1111_that_no_field_repeats_is_noted() -> None:
    pairs = "Variation seed: 7, Variation seed strength: 0.2, Hires upscale: 2, Hires upscaler: 4x-Ultra, ENSD: 31337"
    text = f'a bird\nSteps: 5, Sampler: Euler, Size: 64x64, {pairs}, TI hashes: "bird: 0a1b", RNG: CPU'
    _, notes = fields_of_a1111(text)
    assert notes == (
        "its prompt has textual inversions (bird: 0a1b); give them as embeddings",
        "Hires upscaler 4x-Ultra cannot be repeated; the second pass enlarges latents",
        "Variation seed cannot be repeated",
        "Variation seed strength cannot be repeated",
        "ENSD cannot be repeated",
    )


def test_a_text_of_ours_has_nothing_that_cannot_be_repeated_but_its_controlnets() -> None:
    _, notes = fields_of_a1111(texts_of(written())["parameters"])
    assert [note for note in notes if note.endswith("cannot be repeated")] == ["ControlNet 0 cannot be repeated"]


def test_broken_number_of_a1111s_text_is_named() -> None:
    with pytest.raises(ValueError, match="Seed is 'x1', which is no number"):
        fields_of_a1111("a\nSteps: 5, Sampler: Euler, Seed: x1")


@pytest.mark.parametrize("text", ["", "a cat", "a\nSteps: 5", 'a\nSteps: 5, Sampler: "x'])
def test_text_without_a1111_settings_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no last line"):
        fields_of_a1111(text)


@given(st.text(max_size=40))
def test_any_value_survives_the_last_line(value: str) -> None:
    line = f"Steps: 1, Seed: 2, Note: {json.dumps(value)}, Size: 3x4"
    assert pairs_of(line) == {"Steps": "1", "Seed": "2", "Note": value, "Size": "3x4"}


@given(
    st.binary(max_size=200), st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe1", b"RIFF0000WEBPEXIF", b""])
)
def test_any_bytes_are_texts_or_refused_with_words(tail: bytes, head: bytes) -> None:
    try:
        texts = texts_of(head + tail)
    except ValueError as error:
        assert str(error) == "the file is no PNG, JPEG or WebP"
    else:
        assert all(isinstance(text, str) for text in texts.values())


def test_compressed_and_international_texts_of_png_are_read() -> None:
    info = PngInfo()
    info.add_text("a", "x" * 1000, zip=True)
    info.add_itxt("b", "猫", zip=True)
    out = BytesIO()
    Image.new("RGB", (2, 2)).save(out, "PNG", pnginfo=info)
    assert texts_of(out.getvalue()) == {"a": "x" * 1000, "b": "猫"}


def test_text_that_inflates_without_end_is_cut() -> None:
    body = b"a\x00\x00" + zlib.compress(bytes(50 * 2**20), 9)
    chunk = len(body).to_bytes(4, "big") + b"zTXt" + body + bytes(4)
    assert len(texts_of(b"\x89PNG\r\n\x1a\n" + chunk)["a"]) == 4 * 2**20


def test_long_texts_leave_a_jpeg_with_our_settings() -> None:
    data = written(image_format="jpeg", prompt="word " * 3900, controlnets=[], loras=[])
    assert "giornata" in texts_of(data)
    assert picture_params_of(data).fields["prompts"] == ["word " * 3900]


VARIANTS: list[dict[str, Any]] = [
    {},
    {"vae": None, "loras": [], "clip_skip": None, "high_resolution": None, "controlnets": []},
    {"high_resolution": None, "refiner": {"model": "r"}},
    {"high_resolution": None, "image": SHA, "mask": SHA, "strength": 0.5},
    {"scheduler": "pndm"},
]


@pytest.mark.parametrize("changes", VARIANTS)
def test_workflow_links_outputs_to_inputs_of_their_type(changes: dict[str, Any]) -> None:
    texts = texts_of(written(**changes))
    graph = json.loads(texts["workflow"])
    nodes = {node["id"]: node for node in graph["nodes"]}
    for link_id, source, slot, target, place, kind in graph["links"]:
        assert source < target
        assert nodes[source]["outputs"][slot]["type"] == kind
        assert link_id in nodes[source]["outputs"][slot]["links"]
        assert nodes[target]["inputs"][place] == {
            "name": nodes[target]["inputs"][place]["name"],
            "type": kind,
            "link": link_id,
        }
    assert graph["last_link_id"] == len(graph["links"]) == len({link[0] for link in graph["links"]})
    calls = json.loads(texts["prompt"])
    assert {int(number) for number in calls} == set(nodes)
    for number, call in calls.items():
        kind = NODE_TYPES[call["class_type"]]
        assert set(call["inputs"]) == {*kind.inputs, *kind.widgets}
        assert len(nodes[int(number)]["widgets_values"]) == len(kind.widgets) + len(kind.hidden)
    assert [call["class_type"] for call in calls.values()][-2:] == ["VAEDecode", "SaveImage"]


def test_workflow_says_what_the_settings_say() -> None:
    calls = json.loads(texts_of(written())["prompt"]).values()
    first, second = (call["inputs"] for call in calls if call["class_type"] == "KSampler")
    assert (first["seed"], first["steps"], first["cfg"]) == (2**53 - 1, 25, 6.5)
    assert (first["sampler_name"], first["scheduler"], first["denoise"]) == ("dpmpp_2m", "karras", 1.0)
    assert second["denoise"] == 0.4
    loras = [call["inputs"] for call in calls if call["class_type"] == "LoraLoader"]
    assert [(lora["strength_model"], lora["strength_clip"]) for lora in loras] == [(0.5, 0.5), (1.0, 0.2)]
    assert [call["inputs"]["stop_at_clip_layer"] for call in calls if call["class_type"] == "CLIPSetLastLayer"] == [
        -2
    ]


def test_prompt_for_comfyui_has_weights_and_names_of_embeddings() -> None:
    text = comfyui_prompt(r"(a:1.3) [b] \(c\) neg BREAK d", params().embeddings)
    assert text == r"(a:1.3) (b:0.9091) \(c\) embedding:easy d"
    with pytest.raises(InvalidInput):
        parse("(a")
    assert re.fullmatch(r"\(a", comfyui_prompt("(a", ()))
