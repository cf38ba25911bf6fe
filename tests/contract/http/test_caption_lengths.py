"""Captions that a job's text encoders cannot read whole are refused before the job is queued."""

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.served import Served

from giornata.client import Client
from giornata.control.jobs.submission.length_faults import length_check, prompts_of, within
from giornata.domain.clip import token_count
from giornata.domain.errors import InvalidInput
from giornata.protocol.uploads import DatasetItem

MODEL = "stabilityai/stable-diffusion-xl-base-1.0"
SPEC: dict[str, Any] = {"model": MODEL, "max_train_steps": 10}


def words(tokens: int) -> str:
    caption = " ".join(["house"] * tokens)
    assert token_count(caption) == tokens
    return caption


def dataset_of(client: Client, folder: Path, captions: list[str]) -> str:
    paths = [folder / f"{number:02}.png" for number in range(len(captions))]
    for path in paths:
        path.write_bytes(path.name.encode() * 100)
    files = client.upload_files(paths)
    items = [
        DatasetItem(sha256=file.sha256, name=file.path.name, caption=caption)
        for file, caption in zip(files, captions, strict=True)
    ]
    return client.create_dataset(items).id


def refused(client: Client, spec: dict[str, Any]) -> dict[str, str]:
    """What is wrong by where it is."""
    before = len(list(client.jobs()))
    with pytest.raises(InvalidInput) as submitted:
        client.submit(spec)
    with pytest.raises(InvalidInput) as estimated:
        client.estimate(spec)
    assert estimated.value.faults == submitted.value.faults
    assert len(list(client.jobs())) == before
    return {fault.where: fault.message for fault in submitted.value.faults}


def test_all_of_them_are_told_at_once_with_the_faults_of_other_fields(served: Served, tmp_path: Path) -> None:
    client = served.client()
    pictures = dataset_of(client, tmp_path, [words(75), words(76), words(160)])
    spec = {**SPEC, "dataset": pictures, "rank": 0, "sample_prompts": ["a toy", words(80)]}
    assert refused(client, spec) == {
        "spec.rank": "input should be greater than or equal to 1; it is 0",
        "spec.sample_prompts.1": "has 80 tokens; at most 75 fit",
        "01.png": "has 76 tokens; at most 75 fit",
        "02.png": "has 160 tokens; at most 75 fit",
    }


def test_the_job_says_how_many_fit_or_that_the_rest_is_cut(served: Served, tmp_path: Path) -> None:
    client = served.client()
    spec = {**SPEC, "dataset": dataset_of(client, tmp_path, [words(75), words(76), words(160)])}
    assert set(refused(client, {**spec, "max_token_length": 150})) == {"02.png"}
    assert client.submit({**spec, "max_token_length": 225}).spec["max_token_length"] == 225
    assert client.submit({**spec, "truncate_captions": True}).spec["truncate_captions"] is True
    with pytest.raises(InvalidInput, match=r"spec.max_token_length: input should be 75, 150 or 225; it is 100"):
        client.submit({**spec, "max_token_length": 100})


def test_captions_of_class_pictures_count_too(served: Served, tmp_path: Path) -> None:
    client = served.client()
    (tmp_path / "class").mkdir()
    classes = dataset_of(client, tmp_path / "class", [words(3), words(90), words(75)])
    subject = dataset_of(client, tmp_path, [words(3)] * 3)
    spec = {**SPEC, "dataset": subject, "class_dataset": classes, "with_prior_preservation": True}
    assert refused(client, {**spec, "class_prompt": words(78)}) == {
        "spec.class_prompt": "has 78 tokens; at most 75 fit",
        "01.png": "has 90 tokens; at most 75 fit",
    }


def test_a_folder_may_have_another_vocabulary_so_its_node_counts(served: Served, tmp_path: Path) -> None:
    client = served.client()
    spec = {**SPEC, "dataset": dataset_of(client, tmp_path, [words(160)] * 3)}
    assert client.submit({**spec, "model": "/models/own"}).state == "queued"
    assert set(refused(client, {**spec, "model": "/models/own.safetensors"})) == {"00.png", "01.png", "02.png"}


def test_new_tokens_count_as_what_text_encoders_hear() -> None:
    fields = {**SPEC, "dataset": "ds_0", "train_text_encoder_ti": True, "num_new_tokens_per_abstraction": 8}
    check = length_check(fields, None)
    assert check.of_captions([("a.png", "TOK " + words(67))]) == []
    assert [fault.message for fault in check.of_captions([("a.png", "TOK " + words(68))])] == [
        "has 76 tokens; at most 75 fit"
    ]


def test_a_shuffled_caption_has_to_fit_in_every_order() -> None:
    """A separator after another sign may be a token of its own, or one with it."""
    parts = [words(70), "a", "b ..", "?"]
    shuffled = length_check({**SPEC, "dataset": "ds_0", "shuffle_caption": True}, None)
    caption = ", ".join(parts)
    counts = {token_count(", ".join([*parts[:place], *parts[place + 1 :], parts[place]])) for place in range(4)}
    assert min(counts) == 75 and max(counts) > 75
    (fault,) = shuffled.of_captions([("a.png", caption)])
    assert fault.message == f"has {max(counts)} tokens; at most 75 fit"
    assert shuffled.of_texts([("spec.class_prompt", ", ".join(parts[:1]))]) == []


def test_prompts_are_found_under_every_name_and_whatever_stands_there() -> None:
    assert prompts_of({"validation": 3, "sample_prompts": ["a", 4], "instance_prompt": 5}) == [
        ("spec.sample_prompts.0", "a")
    ]


def test_caption_length_check_skips_spec_with_invalid_max_token_length() -> None:
    check = length_check({**SPEC, "dataset": "ds_0", "max_token_length": 3}, None)
    assert check.of_texts([("a", words(300))]) == []


def test_caption_length_check_stops_at_character_limit_per_request() -> None:
    """The request holds a transaction."""
    named = [(f"{number}.png", "x" * 40) for number in range(5)]
    assert list(within(named, most_chars=120)) == named[:3]
    assert list(within(named, most_chars=119)) == named[:2]
    assert list(within(named, most_chars=200)) == named
