"""Choices, wildcards and LoRA marks of prompts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.errors import InvalidInput
from giornata.domain.generation.prompt_choices import (
    draw_prompt,
    largest_cost,
    parse_template,
    wildcards_of,
    without_choices,
)
from giornata.domain.generation.prompt_loras import PromptLora, blanked, lora_faults, without_loras
from giornata.domain.named_draws import drawn_integer, drawn_share

LISTS = {"color": ["red", "dark {green|blue}"], "hair_color": ["fair"]}


def drawn(prompt: str, seed: int = 0) -> str:
    return draw_prompt(prompt, seed=seed, purpose="prompt", wildcards=LISTS)


def told(prompt: str) -> list[str]:
    with pytest.raises(InvalidInput) as refused:
        drawn(prompt)
    return [fault.message for fault in refused.value.faults]


def test_drawn_numbers_are_these_on_every_machine() -> None:
    assert [drawn_integer(7, "prompt", each, below=1000) for each in range(4)] == [452, 739, 647, 432]
    assert drawn_share(7, "prompt", 1) == 0.48385798901507304


def test_drawn_integers_are_equally_likely() -> None:
    counts = Counter(drawn_integer(1, "test", each, below=3) for each in range(3000))
    assert sorted(counts) == [0, 1, 2]
    assert min(counts.values()) > 900


@given(st.text(st.characters(exclude_characters="{}_", exclude_categories=["Cs"])))
def test_text_without_choices_is_unchanged(text: str) -> None:
    assert drawn(text) == text


def test_draw_is_a_function_of_seed_purpose_and_place() -> None:
    prompt = "{a|b|c|d}{a|b|c|d} __color__"
    texts = [drawn(prompt, seed) for seed in range(200)]
    assert texts == [drawn(prompt, seed) for seed in range(200)]
    assert len(set(texts)) > 20
    other = [draw_prompt(prompt, seed=seed, purpose="negative_prompt", wildcards=LISTS) for seed in range(200)]
    assert sum(a == b for a, b in zip(texts, other, strict=True)) < 20


def test_every_option_is_drawn_by_its_chance() -> None:
    counts = Counter(drawn("{3::a|b|0::c}", seed) for seed in range(2000))
    assert set(counts) == {"a", "b"}
    assert 1400 < counts["a"] < 1600


def test_options_and_lines_have_choices_of_their_own() -> None:
    assert {drawn("{a|{b|}} __color__ __hair_color__", seed) for seed in range(300)} == {
        f"{first} {second} fair" for first in ("a", "b", "") for second in ("red", "dark green", "dark blue")
    }


@pytest.mark.parametrize(
    ("prompt", "text"), [("___hair_color___", "_fair_"), ("a__b", "a__b"), ("__a _b_", "__a _b_"), ("_" * 9, "_" * 9)]
)
def test_underscores_around_a_wildcard_are_text(prompt: str, text: str) -> None:
    assert drawn(prompt) == text


def test_escapes_and_brackets_are_kept_for_the_weights() -> None:
    assert drawn(r"\{a\|b\} \_\_color\_\_ (x:1.2)") == r"\{a\|b\} \_\_color\_\_ (x:1.2)"


@given(st.lists(st.sampled_from(["0", "0.1", "0.3", "3", "1000000"]), min_size=1, max_size=5), st.integers(0, 2**53))
def test_option_without_a_chance_is_never_drawn(weights: list[str], seed: int) -> None:
    prompt = "{" + "|".join(f"{weight}::{weight}" for weight in weights) + "}"
    if set(weights) == {"0"}:
        assert told(prompt)
    else:
        assert drawn(prompt, seed) in set(weights) - {"0"}


@pytest.mark.parametrize(
    ("prompt", "messages"),
    [
        ("a {b", ["character 3: { is not closed"]),
        ("a}", ["character 2: } closes nothing"]),
        ("{0::a|0::b}", ["character 1: no option has a chance"]),
        ("{" + "9" * 400 + "::a|b}", ["character 1: a weight is above 1e+06"]),
        ("{2$$a|b}", ["character 2: $$ chooses several options"]),
        ("a __size__", ["character 3: there is no list for __size__"]),
    ],
)
def test_broken_choice_names_the_character(prompt: str, messages: list[str]) -> None:
    assert told(prompt) == messages


def test_choices_without_an_end_are_faults_however_deep() -> None:
    assert "character 21: choices are nested more than 20 deep" in told("{" * 10_000)


def test_list_that_names_itself_is_refused_not_drawn_for_ever() -> None:
    with pytest.raises(InvalidInput):
        draw_prompt("__a__", seed=1, purpose="prompt", wildcards={"a": ["__a__"]})


def test_places_stay_without_the_choices() -> None:
    template = parse_template("(a {b|(c:2)}:1.2) __color__")
    assert without_choices(template) == "(a xxxxxxxxx:1.2) xxxxxxxxx"
    assert [each.name for each in wildcards_of(template)] == ["color"]


def test_largest_cost_takes_the_largest_option() -> None:
    assert largest_cost(parse_template("ab{c|def|{gh|ijkl}}__color__"), len, {"color": 10}) == 2 + 4 + 10


def test_marks_of_loras_are_cut_out() -> None:
    prompt = "a cat <lora:ink:0.5> <lora:job_1@500> <lora:x:0.2:0.3> <s0>"
    assert without_loras(prompt) == (
        "a cat    <s0>",
        (
            PromptLora(name="ink", weight=0.5),
            PromptLora(name="job_1@500"),
            PromptLora(name="x", weight=0.3, text_encoder_weight=0.2),
        ),
    )
    assert len(blanked(prompt)) == len(prompt)
    assert "lora" not in blanked(prompt)


def test_escaped_mark_is_text() -> None:
    assert without_loras(r"\<lora:x:1>") == (r"\<lora:x:1>", ())


def test_broken_marks_are_faults_with_places() -> None:
    prompt = "<lora:a:b> <lora:c <hypernet:x:1> <lora:{a|b}:1> <lora:d:30>"
    assert [fault.message for fault in lora_faults(prompt, where="prompt")] == [
        "character 1: <lora:a:b> names no LoRA with a weight",
        "character 12: < is not closed",
        "character 20: hypernetworks are not offered",
        "character 35: the name or weight of a LoRA is not drawn",
        "character 50: <lora:d:30> names no LoRA with a weight",
    ]
