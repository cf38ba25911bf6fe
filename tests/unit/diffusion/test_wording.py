"""How captions are said is a function of the step, and loses none of their parts."""

import itertools

import pytest

from giornata.diffusion.encode.captions import CaptionAugmentation

CAPTION = "sks, red,blue ,  green"
KEYS = list(itertools.product(range(60), range(2), range(2)))


def said(augmentation: CaptionAugmentation, caption: str = CAPTION) -> list[str]:
    return [augmentation.draw(caption, "instance", *key) for key in KEYS]


def test_caption_is_unchanged_by_default_augmentation() -> None:
    assert set(said(CaptionAugmentation(seed=1))) == {CAPTION}


def test_shuffling_keeps_all_parts_and_the_first_ones_in_place() -> None:
    found = said(CaptionAugmentation(seed=1, shuffled=True, kept=1))
    assert {tuple(sorted(each.split(", "))) for each in found} == {("blue", "green", "red", "sks")}
    assert {each.split(", ")[0] for each in found} == {"sks"}
    assert len(set(found)) == 6  # all the orders of the rest


def test_more_parts_to_keep_than_there_are() -> None:
    assert set(said(CaptionAugmentation(seed=1, shuffled=True, kept=9))) == {"sks, red, blue, green"}


def test_caption_is_shuffled_at_custom_separator() -> None:
    found = said(CaptionAugmentation(seed=1, shuffled=True, separator="|"), "a, b|c")
    assert set(found) == {"a, b| c", "c| a, b"}


def test_a_mark_tells_what_stays_first_and_a_second_one_what_stays_last() -> None:
    """As in sd-scripts' `process_caption`: empty parts go, and a caption without the mark keeps `kept` parts."""
    wording = CaptionAugmentation(seed=1, shuffled=True, kept=1, keep_separator="|||")
    found = said(wording, "sks,  toy ||| red, blue,, green ||| at night")
    assert {tuple(each.split(", ")[:2]) for each in found} == {("sks", "toy")}
    assert {each.rpartition(", ")[2] for each in found} == {"at night"}
    assert {tuple(sorted(each.split(", ")[2:5])) for each in found} == {("blue", "green", "red")}
    assert len(set(found)) == 6
    assert set(said(wording, "sks, toy |||")) == {"sks, toy"}
    assert said(wording) == said(CaptionAugmentation(seed=1, shuffled=True, kept=1))


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_captions_are_left_out_as_often_as_was_asked_for(rate: float) -> None:
    found = said(CaptionAugmentation(seed=1, dropout_rate=rate))
    assert set(found) <= {CAPTION, ""}
    assert found.count("") / len(found) == pytest.approx(rate, abs=0.08)


def test_caption_draw_depends_only_on_seed_and_position() -> None:
    augmentation = CaptionAugmentation(seed=1, shuffled=True, dropout_rate=0.2)
    assert said(augmentation) == said(augmentation)
    assert said(augmentation) != said(CaptionAugmentation(seed=2, shuffled=True, dropout_rate=0.2))
    assert said(augmentation) != said(CaptionAugmentation(seed=1, shuffled=True, dropout_rate=0.2))[::-1]


def test_class_pictures_keep_their_captions() -> None:
    augmentation = CaptionAugmentation(seed=1, shuffled=True, dropout_rate=1.0)
    assert {augmentation.draw(CAPTION, "class", *key) for key in KEYS} == {CAPTION}


def test_possible_captions_are_listed_unless_shuffled() -> None:
    assert CaptionAugmentation().all_of(["b", "a", "b"]) == ["a", "b"]
    assert CaptionAugmentation(dropout_rate=0.1).all_of(["b", "a"]) == ["", "a", "b"]
    assert CaptionAugmentation(shuffled=True).all_of(["a"]) is None
