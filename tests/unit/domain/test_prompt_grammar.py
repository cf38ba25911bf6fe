"""Weights of prompts in A1111's attention grammar."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.errors import InvalidInput
from giornata.domain.generation.prompt_grammar import MAX_DEPTH, Segment, escaped, parse

PLAIN = st.text(st.characters(exclude_characters="()[]\\", exclude_categories=["Cs"])).filter(
    lambda text: "BREAK" not in text
)
ANY = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "BREAK" not in text)
WEIGHTS = st.integers(1, 31).map(lambda tenths: tenths / 10)


def only(text: str) -> tuple[Segment, ...]:
    (section,) = parse(text)
    return section


def faults(text: str) -> list[str]:
    with pytest.raises(InvalidInput) as refused:
        parse(text, where="spec.prompts.3")
    assert {fault.where for fault in refused.value.faults} == {"spec.prompts.3"}
    return [fault.message for fault in refused.value.faults]


@given(PLAIN)
def test_text_without_brackets_is_unchanged(text: str) -> None:
    assert parse(text) == ((Segment(text),) if text else (),)


@given(ANY)
def test_escaped_text_is_unchanged(text: str) -> None:
    assert "".join(segment.text for segment in only(escaped(text))) == text
    assert all(segment.weight == 1.0 for segment in only(escaped(text)))


@given(st.lists(WEIGHTS, max_size=2), ANY.filter(str.strip))
def test_weights_of_nested_brackets_multiply(weights: list[float], text: str) -> None:
    prompt = escaped(text)
    for weight in weights:
        prompt = f"({prompt}:{weight})"
    (segment,) = only(prompt)
    assert segment.text == text
    assert segment.weight == pytest.approx(math.prod(weights))


def test_brackets_without_numbers_strengthen_and_weaken() -> None:
    assert only("a (b) [c] ((d)) [[e]]") == (
        Segment("a "),
        Segment("b", 1.1),
        Segment(" "),
        Segment("c", 1 / 1.1),
        Segment(" "),
        Segment("d", 1.1 * 1.1),
        Segment(" "),
        Segment("e", 1 / 1.1 * (1 / 1.1)),
    )


def test_weight_covers_inner_brackets_and_the_text_around_them() -> None:
    assert only("(a (b:1.5) c:0.5) d") == (Segment("a ", 0.5), Segment("b", 0.75), Segment(" c", 0.5), Segment(" d"))


@pytest.mark.parametrize("number", ["1.3", "+1.3", " 1.3 ", "1.30", "01.3"])
def test_weight_is_any_decimal_number(number: str) -> None:
    assert only(f"(a:{number})") == (Segment("a", 1.3),)


def test_break_divides_sections_and_keeps_weights() -> None:
    assert parse("a BREAK  b") == ((Segment("a"),), (Segment("b"),))
    assert parse("(a BREAK b:1.2)") == ((Segment("a", 1.2),), (Segment("b", 1.2),))
    assert parse("a BREAK") == ((Segment("a"),), ())
    assert parse("BREAKFAST, a break") == ((Segment("BREAKFAST, a break"),),)


def test_colon_and_bar_outside_brackets_are_text() -> None:
    assert only("12:30, a|b") == (Segment("12:30, a|b"),)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("a (b", ["character 3: ( is not closed"]),
        ("(a [b", ["character 1: ( is not closed", "character 4: [ is not closed"]),
        ("a) b]", ["character 2: ) closes nothing", "character 5: ] closes nothing"]),
        ("(a]", ["character 3: ] closes ("]),
        ("(a:1.x)", ["character 3: the colon begins no weight"]),
        ("(a:1,3)", ["character 3: the colon begins no weight"]),
        ("(a:)", ["character 3: the colon begins no weight"]),
        ("(a: b:1.2)", ["character 3: the colon begins no weight"]),
        ("[a:b:5]", ["character 3: : inside square brackets", "character 5: : inside square brackets"]),
        ("[a|b]", ["character 3: | inside square brackets"]),
        ("b (a:30)", ["character 3: the weight is above 10 or below -10"]),
        ("((a:5):5)", ["character 1: the weight is above 10 or below -10"]),
        ("(" * 5000, [f"character {MAX_DEPTH + 1}: more than {MAX_DEPTH} brackets are open"]),
    ],
)
def test_broken_prompt_names_each_character(prompt: str, told: list[str]) -> None:
    assert faults(prompt) == told


def test_places_count_from_the_offset() -> None:
    with pytest.raises(InvalidInput, match="character 12: "):
        parse("a)", offset=10)


@given(st.text("()[]:\\1. aB", max_size=30))
def test_any_text_is_sections_or_faults_with_places(text: str) -> None:
    try:
        sections = parse(text)
    except InvalidInput as refusal:
        assert all(fault.message.startswith("character ") and fault.hint for fault in refusal.faults)
    else:
        assert len(sections) >= 1
        assert all(segment.text for section in sections for segment in section)
