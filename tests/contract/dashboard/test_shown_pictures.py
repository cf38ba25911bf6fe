"""New training shows pictures of true sizes and formats as they are trained, as the inspecting process sees them."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlencode

import pytest
from PIL import Image
from tests.fixtures.dashboard import PROJECT, Furnished, furnished
from tests.fixtures.people import Browser, browser_of
from tests.fixtures.users import have

import giornata.pictures.inspector.display  # noqa: F401  (makes Pillow write HEIC)
from giornata.cli.system import SandboxedPictures
from giornata.control.caller import Caller
from giornata.pictures.inspection import PictureLimits
from giornata.protocol.presets import PRESETS, started_from
from giornata.protocol.project.admin import Scope

HERE = f"/dashboard/projects/{PROJECT}"
ANN = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_ann")
BUCKETS = '{"enable_bucket": true}'
RED, BLUE = (200, 30, 30), (20, 40, 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the page says of a picture: its size, the size at which it is trained, and the part that is trained."""

    size: tuple[int, int]
    trained: tuple[int, int]
    crop: tuple[int, int, int, int]
    words: str


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Furnished]:
    with furnished(tmp_path_factory.mktemp("shown")) as made:
        real = SandboxedPictures(limits=PictureLimits())
        made.served.app.state.context = replace(made.served.app.state.context, pictures=real)
        yield made


@pytest.fixture(scope="module")
def member(installation: Furnished) -> Browser:
    return browser_of(installation.served, installation.member)


def file_of(width: int, height: int, kind: str = "PNG", *, orientation: int = 1) -> bytes:
    """A picture whose left half is red and whose right half is blue, as its pixels lie in the file."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (width // 2, 0, width, height))
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    more = {"exif": exif} if orientation > 1 else {}
    image.save(buffer, kind, **more)
    return buffer.getvalue()


def card_of(installation: Furnished, member: Browser, content: bytes, **fields: str) -> Card:
    added = json.dumps([{"sha256": have(installation.served.ctx, ANN, content), "name": "one"}])
    form = urlencode({"csrf": member.csrf_token, "added": added, "instance_prompt": "sks", **fields})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    text = member.call("POST", f"{HERE}/train/pictures", content=form, headers=headers).text
    words = re.findall(r'<p class="soft">(\d+×\d+ → .*?)</p>', text)[0]
    width, height, trained_width, trained_height = map(int, re.findall(r"\d+", words)[:4])
    cut = re.findall(r"Z M(\d+) (\d+)h(\d+)v(\d+)h", text)[0]
    left, top, crop_width, crop_height = map(int, cut)
    size, trained = (width, height), (trained_width, trained_height)
    return Card(size=size, trained=trained, crop=(left, top, crop_width, crop_height), words=words)


def is_centered_part(card: Card) -> bool:
    """True when the crop has the shape of the trained picture, and lies in the middle of the whole one."""
    (width, height), (left, top, crop_width, crop_height) = card.size, card.crop
    in_the_middle = abs(width - crop_width - 2 * left) <= 1 and abs(height - crop_height - 2 * top) <= 1
    touches = crop_width == width or crop_height == height
    same_shape = abs(crop_width / crop_height - card.trained[0] / card.trained[1]) < 0.01
    return in_the_middle and touches and same_shape


def test_a_landscape_is_cut_to_a_bucket_of_its_shape(installation: Furnished, member: Browser) -> None:
    card = card_of(installation, member, file_of(2000, 1100), more=BUCKETS)
    assert card.size == (2000, 1100)
    assert card.trained[0] > card.trained[1]
    assert all(side % 64 == 0 for side in card.trained)
    assert is_centered_part(card)
    assert card.crop[2:] != card.size, "no bucket has just this shape"
    assert "enlarged" not in card.words
    assert "turned" not in card.words


def test_a_landscape_without_buckets_is_cut_to_a_square_from_its_middle(
    installation: Furnished, member: Browser
) -> None:
    card = card_of(installation, member, file_of(2000, 1100))
    assert card.trained == (1024, 1024)
    assert card.crop == (450, 0, 1100, 1100)


def test_a_picture_that_was_held_sideways_is_turned_upright_and_says_so(
    installation: Furnished, member: Browser
) -> None:
    card = card_of(installation, member, file_of(1800, 1200, "JPEG", orientation=6), more=BUCKETS)
    assert card.size == (1200, 1800)
    assert card.trained[0] < card.trained[1]
    assert "turned upright" in card.words
    assert is_centered_part(card)


def test_a_small_picture_says_how_much_it_is_enlarged(installation: Furnished, member: Browser) -> None:
    card = card_of(installation, member, file_of(320, 320), more='{"resolution": 1024}')
    assert (card.trained, card.crop) == ((1024, 1024), (0, 0, 320, 320))
    assert "enlarged 3.2×" in card.words
    as_it_is = card_of(
        installation, member, file_of(320, 320), more='{"enable_bucket": true, "bucket_no_upscale": true}'
    )
    assert (as_it_is.trained, "enlarged" in as_it_is.words) == ((320, 320), False)


def test_a_preset_decides_at_which_size_a_picture_is_trained(installation: Furnished, member: Browser) -> None:
    sizes = {name: started_from(name, {}).get("resolution", 1024) for name in PRESETS}
    for name, resolution in sizes.items():
        card = card_of(installation, member, file_of(1500, 1500), preset=name)
        assert card.trained == (resolution, resolution), name
    own = card_of(installation, member, file_of(1500, 1500), preset=next(iter(PRESETS)), more='{"resolution": 768}')
    assert own.trained == (768, 768), "a field of the form wins"


@pytest.mark.parametrize(
    ("kind", "media_type", "width"),
    [
        ("PNG", "image/png", 1400),
        ("GIF", "image/gif", 1400),
        ("BMP", "image/bmp", 1400),
        ("AVIF", "image/avif", 1400),
        ("HEIF", "image/jpeg", 1024),
        ("TIFF", "image/jpeg", 1024),
    ],
)
def test_a_browser_gets_each_format_as_one_that_it_shows(
    installation: Furnished, member: Browser, kind: str, media_type: str, width: int
) -> None:
    content = file_of(1400, 700, kind)
    card = card_of(installation, member, content)
    assert card.size == (1400, 700)
    sent = member.call("GET", f"{HERE}/uploaded/{have(installation.served.ctx, ANN, content)}")
    assert (sent.status_code, sent.headers["content-type"]) == (200, media_type)
    with Image.open(io.BytesIO(sent.content)) as shown:
        assert shown.size == (width, width // 2)
        left, right = (shown.convert("RGB").getpixel((x, width // 4)) for x in (10, width - 10))
    for found, wanted in ((left, RED), (right, BLUE)):
        assert all(abs(one - other) < 25 for one, other in zip(found, wanted, strict=True)), kind


def test_a_preview_is_upright_and_a_file_that_is_none_has_no_preview(
    installation: Furnished, member: Browser
) -> None:
    turned = have(installation.served.ctx, ANN, file_of(1200, 600, "TIFF", orientation=6))
    sent = member.call("GET", f"{HERE}/uploaded/{turned}")
    with Image.open(io.BytesIO(sent.content)) as shown:
        assert shown.size == (512, 1024)
    for broken in (b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(99), b"II*\0" + bytes(50)):
        sha256 = have(installation.served.ctx, ANN, broken)
        assert member.call("GET", f"{HERE}/uploaded/{sha256}").status_code == 404


def test_bytes_that_are_no_picture_are_sent_to_no_browser(installation: Furnished, member: Browser) -> None:
    for content in (b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", b"GIF", b"xxxxftypavix"):
        sha256 = have(installation.served.ctx, ANN, content)
        assert member.call("GET", f"{HERE}/uploaded/{sha256}").status_code == 404, content
