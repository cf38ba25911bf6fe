"""The pictures that the drawing model learns from: repeatable, captioned rightly, without what is held out."""

import random

import pytest
from tools.tiny_shapes.courses import composition
from tools.tiny_shapes.scoring import Scorer

from giornata.diffusion.shapes.pictures import (
    FORMS,
    HELD_OUT,
    PALETTE,
    TRAINED,
    Shape,
    caption_of,
    captioned,
    captions,
    draw_shape,
    grid,
)
from giornata.diffusion.tiny.drawings import SUBJECTS


def test_the_same_arguments_give_the_same_bytes_and_others_do_not() -> None:
    assert captioned(5, seed=1).tobytes() == captioned(5, seed=1).tobytes()
    assert composition(5, seed=1).tobytes() == composition(5, seed=1).tobytes()
    drawn = {captioned(index, seed=seed).tobytes() for index in (0, len(TRAINED)) for seed in (0, 1)}
    assert len(drawn) == 4  # the same shape each time, at other places


def test_a_picture_shows_what_its_caption_says() -> None:
    scorer = Scorer()
    for index in range(2 * len(TRAINED)):
        shape, caption = TRAINED[index % len(TRAINED)], caption_of(index)
        assert scorer.count_scores([captioned(index)], [shape]).all == 1
        said = caption.split()
        assert all(word not in said for word in {*FORMS, *PALETTE} - {shape.form, shape.color})
        assert caption in captions()


def test_held_out_pairs_are_never_drawn_and_never_said_in_training() -> None:
    assert len(HELD_OUT) == len(FORMS) and len(set(HELD_OUT.values())) == len(FORMS)
    assert len(grid()) - len(TRAINED) == 4 * len(FORMS)
    assert not any(f"{HELD_OUT[form]} {form}" in caption for form in FORMS for caption in captions())
    assert any(f"{HELD_OUT[form]} shape" in caption for form in FORMS for caption in captions())


def test_no_subject_is_said_in_training() -> None:
    words = {word for caption in captions() for word in caption.split()}
    assert not words & {"sks", *(noun for _, noun in SUBJECTS.values())}


def test_most_captions_say_everything_and_some_nothing() -> None:
    told = [caption_of(index) for index in range(4000)]
    full = sum(any(caption == shape.caption for shape in TRAINED) for caption in told)
    assert 0.67 < full / len(told) < 0.73
    assert "a shape" in told and "a star" in told and "an orange shape on a gray background" in told


def test_draw_of_shape_with_unset_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves something open"):
        draw_shape(Shape(form="star", color="red"), random.Random(0))
