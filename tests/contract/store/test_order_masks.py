"""Masks of an order are compared with their pictures before the order is submitted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.contexts import FinePicture
from tests.fixtures.users import ANN, have, move_in

from giornata.control.context import Context
from giornata.control.jobs.submission.order_models import bring_order_models
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.jobs import SubmitJob

MASK_OF_512 = "the mask has 64×64 pixels, and its picture has 512×512"


@dataclass
class WrittenSizes:
    """Pictures whose content is their size, such as `512x512`. Any other content cannot be shown."""

    looks: list[str] = field(default_factory=list)

    def preview(self, path: Path) -> bytes | None:
        return None

    def inspect(self, files: Sequence[tuple[str, Path]]) -> Sequence[FinePicture]:
        self.looks += [name for name, _ in files]
        return [self._look(name, path.read_text()) for name, path in files]

    def _look(self, name: str, content: str) -> FinePicture:
        width, found, height = content.partition("#")[0].partition("x")
        if not found:
            fault = Fault(where=name, message="is no picture", hint="save it anew")
            return FinePicture(name=name, format=None, width=None, height=None, faults=(fault,))
        return FinePicture(name=name, width=int(width), height=int(height))


@pytest.fixture
def rig(ctx: Context) -> Context:
    move_in(ctx)
    return replace(ctx, pictures=WrittenSizes())


def refused(rig: Context, kind: str = "generate", **spec: Any) -> list[tuple[str, str]]:
    usual = {"model": "base", "width": 64, "height": 64, "num_inference_steps": 2}
    text = {"prompts": ["a fox"]} if kind == "generate" else {"prompt": "a fox"}
    try:
        bring_order_models(rig, ANN, SubmitJob(kind=kind, spec=usual | text | spec))
    except InvalidInput as refusal:
        return sorted((each.where, each.message) for each in refusal.faults if each.where != "spec.model")
    return []


def test_mask_of_another_size_is_refused_at_each_place_with_the_other_faults(rig: Context) -> None:
    large, other, mask = (have(rig, ANN, content) for content in (b"512x512", b"512x512#2", b"64x64"))
    entries = [{"prompt": "a", "image": other}, {"prompt": "a", "mask": large}, {"prompt": "a"}]
    found = refused(rig, image=large, mask=mask, pictures=entries, width=513)
    assert found == [
        ("spec.mask", MASK_OF_512),
        ("spec.pictures.0.image", MASK_OF_512),
        ("spec.width", "input should be a multiple of 8; it is 513"),
    ]


def test_mask_of_an_axis_is_refused_at_its_value(rig: Context) -> None:
    large, fits, mask = (have(rig, ANN, content) for content in (b"512x512", b"512x512#2", b"64x64"))
    axes = [{"field": "mask", "values": [fits, mask]}]
    assert refused(rig, "grid", image=large, axes=axes) == [("spec.axes.0.values.1", MASK_OF_512)]


def test_picture_that_cannot_be_shown_is_told_at_its_mask(rig: Context) -> None:
    image, mask = have(rig, ANN, b"512x512"), have(rig, ANN, b"nothing")
    assert refused(rig, image=image, mask=mask) == [("spec.mask", "the mask is no picture")]


def test_mask_that_fits_is_looked_at_once(rig: Context) -> None:
    spec = {"image": have(rig, ANN, b"512x512"), "mask": have(rig, ANN, b"512x512#2")}
    assert refused(rig, **spec) == refused(rig, **spec) == []
    assert sorted(rig.pictures.looks) == sorted(spec.values())  # type: ignore[attr-defined]


def test_order_without_masks_and_masks_that_are_not_there_are_not_looked_at(rig: Context) -> None:
    image = have(rig, ANN, b"512x512")
    for spec in ({"image": image}, {"image": image, "mask": "0" * 64}, {"image": image, "mask": "\u0000"}):
        assert MASK_OF_512 not in dict(refused(rig, **spec)).values()
    assert rig.pictures.looks == []  # type: ignore[attr-defined]
