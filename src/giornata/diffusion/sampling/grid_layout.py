"""Lays pictures out as one labeled sheet. Knows nothing of models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont, ImageOps

MARGIN_PX = 28
GAP_PX = 6  # between pictures of a group
GROUP_GAP_PX = 30
ROW_GAP_PX = 22
LABEL_PX = 210
HEADING_PX = (16, 15, 14, 13, 12)
MIN_CELL_PX, MAX_CELL_PX = 128, 256
PAPER, INK, FAINT, EMPTY, EDGE = "#ffffff", "#1d1f23", "#6c7079", "#eeeff1", "#d5d7db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Pictures under one heading; `captions` are the small print over each column."""

    heading: str
    captions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetRow:
    """One row: `pictures` has one tuple per group, and may hold fewer pictures than the group has columns; None
    leaves a cell empty."""

    label: str
    text: str
    pictures: tuple[tuple[Image.Image | None, ...], ...]


def cell_side_px(side_px: int) -> int:
    """Return the side at which the sheet shows a picture of `side_px`: small ones at a whole multiple, large ones at
    MAX_CELL_PX."""
    if side_px >= MIN_CELL_PX:
        return min(side_px, MAX_CELL_PX)
    return side_px * math.ceil(MIN_CELL_PX / side_px)


def fitted(picture: Image.Image, cell_px: int) -> Image.Image:
    """Return the picture as a square cell. Pixels of small pictures stay pixels: enlarging never invents a
    smoothness."""
    enlarged = max(picture.size) <= cell_px
    method = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
    return ImageOps.fit(picture.convert("RGB"), (cell_px, cell_px), method)


def compose_sheet(
    rows: Sequence[SheetRow], groups: Sequence[Group], *, title: str, subtitle: str = "", cell_px: int
) -> Image.Image:
    """Compose the whole sheet as an RGB picture."""
    lefts = _column_lefts(groups, cell_px)
    width_px = max(lefts[-1][-1] + cell_px, MARGIN_PX + _width_px(title, 24), MARGIN_PX + _width_px(subtitle, 13))
    head_px = MARGIN_PX + 34 + (20 if subtitle else 0) + 18 + 44
    row_px = cell_px + ROW_GAP_PX
    size = (math.ceil(width_px) + MARGIN_PX, head_px + row_px * len(rows) - ROW_GAP_PX + MARGIN_PX)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN_PX, MARGIN_PX - 6), title, fill=INK, font=ImageFont.load_default(24))
    draw.text((MARGIN_PX, MARGIN_PX + 28), subtitle, fill=FAINT, font=ImageFont.load_default(13))
    _draw_headings(draw, groups, lefts, cell_px, bottom_px=head_px - 6)
    for number, row in enumerate(rows):
        _draw_row(sheet, draw, row, lefts, cell_px, top_px=head_px + number * row_px)
    return sheet


def _column_lefts(groups: Sequence[Group], cell_px: int) -> list[list[int]]:
    left = MARGIN_PX + LABEL_PX
    lefts = []
    for group in groups:
        lefts.append([left + number * (cell_px + GAP_PX) for number in range(len(group.captions))])
        left = lefts[-1][-1] + cell_px + GROUP_GAP_PX
    return lefts


def _draw_headings(
    draw: ImageDraw.ImageDraw, groups: Sequence[Group], lefts: list[list[int]], cell_px: int, *, bottom_px: int
) -> None:
    for group, columns in zip(groups, lefts, strict=True):
        width_px = columns[-1] + cell_px - columns[0]
        text, font = _heading(group.heading, width_px)
        draw.text((columns[0], bottom_px - 24), text, fill=INK, font=font, anchor="ls")
        draw.line((columns[0], bottom_px - 18, columns[-1] + cell_px, bottom_px - 18), fill=FAINT, width=1)
        for left, caption in zip(columns, group.captions, strict=True):
            draw.text((left, bottom_px - 15), caption, fill=FAINT, font=ImageFont.load_default(12))


def _heading(text: str, width_px: int) -> tuple[str, ImageFont.FreeTypeFont | ImageFont.ImageFont]:
    """Return the text and the font of the largest letters that fit, cut off if it is too long for the smallest."""
    for size in HEADING_PX:
        font = ImageFont.load_default(size)
        if font.getlength(text) <= width_px:
            return text, font
    return _at_most(1, _wrapped(text, font, width_px))[0], font


def _draw_row(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, row: SheetRow, lefts: list[list[int]], cell_px: int, *, top_px: int
) -> None:
    label_font, text_font = ImageFont.load_default(18), ImageFont.load_default(13)
    room_px = LABEL_PX - 22
    y = float(top_px) - 4  # the letters' tops in line with the pictures'
    for line in _at_most(2, _wrapped(row.label, label_font, room_px)):
        draw.text((MARGIN_PX, y), line, fill=INK, font=label_font)
        y += 23
    y += 4
    for line in _at_most((top_px + cell_px - y) // 17, _wrapped(row.text, text_font, room_px)):
        draw.text((MARGIN_PX, y), line, fill=FAINT, font=text_font)
        y += 17
    for columns, pictures in zip(lefts, row.pictures, strict=True):
        for number, left in enumerate(columns):
            picture = pictures[number] if number < len(pictures) else None
            if picture is not None:
                sheet.paste(fitted(picture, cell_px), (left, top_px))
                box = (left - 1, top_px - 1, left + cell_px, top_px + cell_px)
                draw.rectangle(box, outline=EDGE)  # or a white picture would have no edge
            else:
                draw.rectangle((left, top_px, left + cell_px - 1, top_px + cell_px - 1), fill=EMPTY)


def _wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room_px: int) -> list[str]:
    """Break text into lines no wider than `room_px`; a word that is wider by itself is broken."""
    lines: list[str] = []
    for word in text.split():
        candidate = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(candidate) <= room_px:
            lines[-1] = candidate
            continue
        rest = word
        while font.getlength(rest) > room_px:
            fits = next(n for n in range(len(rest) - 1, 0, -1) if n == 1 or font.getlength(rest[:n]) <= room_px)
            lines.append(rest[:fits])
            rest = rest[fits:]
        lines.append(rest)
    return lines


def _at_most(count: float, lines: list[str]) -> list[str]:
    """Return the first lines, with an ellipsis when there are more: a label must not run into the next row's."""
    room = max(int(count), 1)
    return lines if len(lines) <= room else [*lines[: room - 1], f"{lines[room - 1][:-1]}…"]


def _width_px(text: str, size: int) -> float:
    return ImageFont.load_default(size).getlength(text)
