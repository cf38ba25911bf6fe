"""The scorer: all of what is drawn, none of what is not, and each error in its own column."""

import math
import random

import pytest
from PIL import Image, ImageFilter
from tools.tiny_shapes.scoring import LEAST_IOU, Scorer, count_scores, nearest

from giornata.diffusion.shapes.pictures import FORMS, PALETTE, Shape, draw_shape, filled, grid
from giornata.diffusion.tiny.drawings import BACKGROUNDS, SUBJECTS, Placing, background, draw_picture, ellipse, paint


def drawn(shape: Shape, seed: int = 0) -> Image.Image:
    return draw_shape(shape, random.Random(f"{seed}:{shape}"))


def test_drawn_pictures_score_all_and_shuffled_prompts_next_to_nothing() -> None:
    asked = grid()
    scorer = Scorer()
    found = scorer.count_scores([drawn(shape) for shape in asked], asked)
    assert (found.count, found.form, found.color, found.background, found.both, found.all) == (192, 1, 1, 1, 1, 1)
    assert found.mean_iou > 0.94
    shuffled = random.Random(1).sample(asked, len(asked))
    wrong = scorer.count_scores([drawn(shape) for shape in asked], shuffled)
    assert wrong.all < 0.03
    assert 0.05 < wrong.form < 0.3 and 0.05 < wrong.color < 0.25 and 0.15 < wrong.background < 0.35


def test_soft_edges_are_forgiven_but_not_any_softness() -> None:
    asked = grid()
    scorer = Scorer()
    soft = [drawn(shape).filter(ImageFilter.GaussianBlur(1.5)) for shape in asked]
    assert scorer.count_scores(soft, asked).all > 0.97
    very = [drawn(shape).filter(ImageFilter.GaussianBlur(5)) for shape in asked]
    assert scorer.count_scores(very, asked).all < 0.6


def test_noise_and_emptiness_show_nothing() -> None:
    noise = [Image.frombytes("RGB", (64, 64), random.Random(seed).randbytes(3 * 64 * 64)) for seed in range(50)]
    found = Scorer().count_scores(noise, grid()[:50])
    assert (found.form, found.color, found.background, found.mean_iou) == (0, 0, 0, 0)
    plain = Scorer().read(Image.new("RGB", (64, 64), BACKGROUNDS["brown"]))
    assert (plain.form, plain.color, plain.background) == (None, None, "brown")
    assert set(plain.iou.values()) == {0.0}


@pytest.mark.parametrize("form", FORMS)
def test_each_error_counts_in_its_own_column(form: str) -> None:
    other_form = next(name for name in FORMS if name != form)
    shape = Shape(form=form, color="green", background="gray")
    picture = [drawn(shape)]
    scorer = Scorer()

    def columns(**asked: str | None) -> tuple[float, float, float, float, float]:
        found = scorer.count_scores(
            picture, [Shape(**({"form": form, "color": "green", "background": "gray"} | asked))]
        )
        return found.form, found.color, found.background, found.both, found.all

    assert columns() == (1, 1, 1, 1, 1)
    assert columns(form=other_form) == (0, 1, 1, 0, 0)
    assert columns(color="cyan") == (1, 0, 1, 0, 0)
    assert columns(background="brown") == (1, 1, 0, 1, 0)
    assert columns(form=None, color=None, background=None) == (1, 1, 1, 1, 1)


def test_the_iou_is_that_of_two_areas() -> None:
    # a circle of half its template's area in the same box: an ellipse fills the box as a circle does, a triangle half
    circle = scorer_iou("circle", "square")
    assert circle == pytest.approx(math.pi / 4, abs=0.03)
    assert scorer_iou("square", "triangle") == pytest.approx(0.5, abs=0.03)


def scorer_iou(form: str, other: str) -> float:
    reading = Scorer().read(drawn(Shape(form=form, color="red", background="white")))
    return reading.iou[other]


def test_a_form_that_is_none_of_the_six_is_no_form() -> None:
    blot = [(-1, -0.2), (-0.2, -0.3), (0.1, -1), (0.3, -0.2), (1, 0.9), (0.1, 0.3), (-0.9, 1), (-0.3, 0.2)]
    picture = paint(
        filled(tuple(blot), PALETTE["red"]), ground=BACKGROUNDS["white"], placing=Placing(radius=0.3), size_px=64
    )
    reading = Scorer().read(picture)
    assert max(reading.iou.values()) < LEAST_IOU
    assert (reading.form, reading.color, reading.background) == (None, "red", "white")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_is_known_by_its_outline_and_all_of_its_colors(subject: str) -> None:
    scorer = Scorer([subject])
    asked = [Shape(form=subject, background=background(index)) for index in range(32)]
    found = scorer.count_scores([draw_picture(subject, index) for index in range(32)], asked)
    assert found.all > 0.95
    assert found.color == 1 and found.background == 1
    old = grid()
    pictures = [drawn(shape) for shape in old]
    assert scorer.count_scores(pictures, [Shape(form=subject)] * len(old)).both == 0
    assert scorer.count_scores(pictures, old).all == 1  # looking for one more figure takes none of the old away


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_in_other_colors_is_not_the_subject(subject: str) -> None:
    red, green, blue = draw_picture(subject, 0).split()
    found = Scorer([subject]).count_scores([Image.merge("RGB", (blue, red, green))], [Shape(form=subject)])
    assert (found.form, found.color, found.both) == (1, 0, 0)


def test_a_subject_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KeyError):
        Scorer(["green-dragon"])


def test_shares_are_means_over_the_pictures() -> None:
    shape = Shape(form="ring", color="blue", background="black")
    readings = [
        Scorer().read(drawn(other)) for other in (shape, Shape(form="star", color="blue", background="black"))
    ]
    found = count_scores(readings, [shape, shape])
    assert (found.count, found.form, found.color, found.all) == (2, 0.5, 1.0, 0.5)
    assert found.mean_iou == pytest.approx((readings[0].iou["ring"] + readings[1].iou["ring"]) / 2)


def test_as_many_pictures_as_shapes_and_not_none() -> None:
    with pytest.raises(ValueError, match="no pictures"):
        count_scores([], [])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        Scorer().count_scores([drawn(grid()[0])], grid()[:2])


def test_a_color_is_called_by_the_nearest_name() -> None:
    assert nearest((210, 50, 30), PALETTE) == "red"
    assert nearest((140, 150, 150), BACKGROUNDS) == "gray"


def test_scorer_reads_pictures_of_other_sizes() -> None:
    shape = Shape(form="star", color="red", background="white")
    for size in (32, 128):
        picture = draw_shape(shape, random.Random(3), size_px=size)
        assert Scorer().count_scores([picture], [shape]).all == 1


def test_an_ellipse_is_a_circle_at_its_bounding_box() -> None:
    wide = filled(tuple(ellipse((0, 0), 1.0, 0.6)), PALETTE["cyan"])
    picture = paint(wide, ground=BACKGROUNDS["black"], placing=Placing(), size_px=64)
    assert Scorer().read(picture).form == "circle"
