"""Comparison sheets: the pictures of the files, where they belong, and labels that stay in their place."""

from pathlib import Path

import pytest
from diffusers import StableDiffusionXLPipeline
from PIL import Image, ImageChops
from tools.lora_grid import GridRow, Sampling, main, make_grid, paint, paint_row, parse_row

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.files.formats import write_kohya
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.sampling.grid_layout import Group, SheetRow, cell_side_px, compose_sheet, fitted
from giornata.domain.errors import InvalidInput
from giornata.protocol.specs import TrainSpec

QUICK = Sampling(seeds=(0, 4), steps=2, guidance=1.0)


@pytest.fixture(scope="module")
def lora(tiny_base: BaseModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = TrainSpec.model_validate({"model": "owner/name", "dataset": "ds_1", "seed": 1, "rank": 4})
    with add_adapters(tiny_base, spec) as adapters:
        weights = {name: value + 0.2 for name, value in adapters.tensors().items()}
    path = tmp_path_factory.mktemp("lora") / "toy.safetensors"
    return write_kohya(path, weights, facts_of(spec, step=1, layers_per_block=1))


@pytest.fixture(scope="module")
def pipeline(tiny_folder: Path) -> StableDiffusionXLPipeline:
    loaded = StableDiffusionXLPipeline.from_pretrained(tiny_folder)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def plain(color: str, side_px: int = 64) -> Image.Image:
    return Image.new("RGB", (side_px, side_px), color)


def test_rows_are_read_from_the_command_line() -> None:
    assert parse_row("teal heart=a/b.safetensors:a photo: of x=y") == GridRow(
        label="teal heart", lora=Path("a/b.safetensors"), prompt="a photo: of x=y"
    )
    assert parse_row("base=-:a dog").lora is None
    for text in ("no path", "label=path", "=path:prompt", "label=:prompt"):
        with pytest.raises(InvalidInput, match="--row"):
            parse_row(text)


def test_a_picture_depends_on_its_seed_alone(pipeline: StableDiffusionXLPipeline) -> None:
    both = paint(pipeline, "a dog", QUICK, side_px=64)
    alone = paint(pipeline, "a dog", Sampling(seeds=(4,), steps=2, guidance=1.0), side_px=64)
    assert both[0].tobytes() != both[1].tobytes()
    difference = ImageChops.difference(both[1], alone[0]).getextrema()
    assert max(high for _, high in difference) <= 1  # sums of a larger batch may round differently


def test_a_row_has_base_and_lora_and_leaves_the_pipeline_clean(
    pipeline: StableDiffusionXLPipeline, lora: Path
) -> None:
    before = paint(pipeline, "a dog", QUICK, side_px=64)
    base, with_lora = paint_row(pipeline, GridRow(label="x", lora=lora, prompt="a dog"), QUICK, side_px=64)
    after = paint(pipeline, "a dog", QUICK, side_px=64)
    assert [image.tobytes() for image in before] == [image.tobytes() for image in base]
    assert [image.tobytes() for image in before] == [image.tobytes() for image in after]
    assert all(a.tobytes() != b.tobytes() for a, b in zip(base, with_lora, strict=True))
    assert paint_row(pipeline, GridRow(label="x", lora=None, prompt="a dog"), QUICK, side_px=64)[1] == ()


def test_the_sheet_shows_the_very_pictures(
    pipeline: StableDiffusionXLPipeline, tiny_folder: Path, lora: Path, tmp_path: Path
) -> None:
    row = GridRow(label="toy", lora=lora, prompt="a dog")
    out = make_grid(tiny_folder, [row], tmp_path / "deep" / "grid.png", sampling=QUICK, title="T")
    with Image.open(out) as opened:
        assert opened.format == "PNG"
        sheet = opened.convert("RGB")
    found = sheet.tobytes()
    for pictures in paint_row(pipeline, row, QUICK, side_px=64):
        for picture in pictures:
            line = fitted(picture, 128).crop((0, 64, 128, 65)).tobytes()
            assert line in found


def test_also_prompts_of_lora_grid_are_drawn_beside_each_row_with_and_without_lora(
    pipeline: StableDiffusionXLPipeline, tiny_folder: Path, lora: Path, tmp_path: Path
) -> None:
    """From the first seed, in every row; a row without a LoRA shows the base alone."""
    rows = [GridRow(label="toy", lora=lora, prompt="a dog"), GridRow(label="base", lora=None, prompt="a dog")]
    out = make_grid(tiny_folder, rows, tmp_path / "grid.png", sampling=QUICK, also=["a cat", "a bird"])
    with Image.open(out) as opened:
        found = opened.convert("RGB").tobytes()
    first = Sampling(seeds=QUICK.seeds[:1], steps=QUICK.steps, guidance=QUICK.guidance)
    for prompt in ("a cat", "a bird"):
        base, with_lora = paint_row(pipeline, GridRow(label="x", lora=lora, prompt=prompt), first, side_px=64)
        lines = [fitted(picture, 128).crop((0, 64, 128, 65)).tobytes() for picture in (*base, *with_lora)]
        assert [found.count(line) for line in lines] == [4, 2]  # each line of a small picture is shown twice


def test_lora_grid_refuses_dora_and_lokr_files_that_diffusers_loads_only_in_part(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path
) -> None:
    rows = []
    for number, fields in enumerate(({"use_dora": True}, {"adapter_type": "lokr", "output_formats": ["kohya"]})):
        common = {"model": "owner/name", "dataset": "ds_1", "seed": 1, "rank": 4}
        spec = TrainSpec.model_validate({**common, **fields})
        with add_adapters(tiny_base, spec) as adapters:
            facts = facts_of(spec, step=1, layers_per_block=1)
            path = write_kohya(tmp_path / f"{number}.safetensors", adapters.tensors(), facts)
        rows.append(GridRow(label=str(number), lora=path, prompt=""))
    with pytest.raises(InvalidInput) as refused:
        make_grid(tiny_folder, rows, tmp_path / "grid.png")
    dora, lokr = refused.value.faults
    assert (dora.where, lokr.where) == ("--row 0", "--row 1")
    assert "pytorch_lora_weights" in dora.hint
    assert "LoKr" in lokr.message


def test_command_line_with_training_pictures(tiny_folder: Path, lora: Path, tmp_path: Path) -> None:
    (tmp_path / "toys").mkdir()
    for number, color in enumerate(["#ff0101", "#02ff02", "#0303ff", "#040404"]):
        plain(color, 300).save(tmp_path / "toys" / f"{number}.png")
    (tmp_path / "toys" / "captions.txt").write_text("not a picture")
    out = tmp_path / "grid.png"
    arguments = ["--model", str(tiny_folder), "--out", str(out), "--steps", "1", "--seeds", "3", "--title", "Toys"]
    arguments += ["--row", f"toy={lora}:a dog", "--row", "base=-:a cat", "--pictures", f"toy={tmp_path / 'toys'}"]
    assert main(arguments) == 0
    with Image.open(out) as sheet:
        colors = {color for _, color in sheet.convert("RGB").getcolors(1 << 24) or []}
    assert {(255, 1, 1), (2, 255, 2), (3, 3, 255)} <= colors
    assert (4, 4, 4) not in colors  # only the first few


def test_all_faults_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "broken.png").write_bytes(b"no picture")
    arguments = ["--model", str(tmp_path / "none"), "--out", str(tmp_path / "grid.png")]
    arguments += ["--row", f"toy={tmp_path / 'gone.safetensors'}:a dog", "--pictures", f"toy={tmp_path / 'p'}"]
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert all(part in told for part in ("--model", "gone.safetensors", "broken.png"))
    assert main([*arguments, "--pictures", f"other={tmp_path}"]) == 2
    assert not (tmp_path / "grid.png").exists()


def test_small_pictures_grow_by_whole_multiples_and_large_ones_shrink() -> None:
    assert [cell_side_px(side) for side in (64, 96, 128, 200, 512, 1024)] == [128, 192, 128, 200, 256, 256]
    checks = Image.new("RGB", (64, 64))
    checks.putpixel((1, 0), (255, 255, 255))
    grown = fitted(checks, 128)
    assert grown.getpixel((2, 0)) == grown.getpixel((3, 1)) == (255, 255, 255)
    assert {color for _, color in grown.getcolors() or []} == {(0, 0, 0), (255, 255, 255)}


def test_cells_and_labels_stay_in_their_places() -> None:
    """However long the text is, nothing is drawn outside the row's label column, and nothing over pictures."""
    groups = [Group(heading="A", captions=("", "")), Group(heading="B", captions=("s0",))]
    long = "word " * 80 + "w" * 90
    rows = [SheetRow(label=long, text=long, pictures=((plain("red"),), (plain("lime"),)))] * 2
    sheet = compose_sheet(rows, groups, title="T", cell_px=128)
    quiet = [SheetRow(label="", text="", pictures=row.pictures) for row in rows]
    blank = compose_sheet(quiet, groups, title="T", cell_px=128)
    assert sheet.size == blank.size
    left, top, right, bottom = ImageChops.difference(sheet, blank).getbbox() or (0, 0, 0, 0)
    assert left >= 20
    assert right <= 28 + 210
    cells = [_extent(blank, color) for color in ((255, 0, 0), (0, 255, 0))]
    assert all(box[2] - box[0] == 128 and box[3] - box[1] == 2 * 128 + 22 for box in cells)
    assert top >= cells[0][1] - 8
    assert bottom <= cells[0][3] + 4
    gap = sheet.crop((20, cells[0][1] + 128 + 6, 238, cells[0][1] + 128 + 12))
    assert gap.getcolors() == [(218 * 6, (255, 255, 255))]


def test_a_heading_never_runs_into_the_next_one() -> None:
    wide = "a red circle on a white background, and so on and on and on"
    pictures = ((plain("red"), plain("red")), (plain("lime"), plain("lime")))

    def sheet(heading: str) -> Image.Image:
        groups = [Group(heading=heading, captions=("", "")), Group(heading="", captions=("", ""))]
        return compose_sheet([SheetRow(label="", text="", pictures=pictures)], groups, title="T", cell_px=128)

    for heading in (wide[:34], wide, "w" * 80):
        left, _, right, _ = ImageChops.difference(sheet(heading), sheet("")).getbbox() or (0, 0, 0, 0)
        assert left >= 28 + 210 - 1
        assert right <= 28 + 210 + 2 * 128 + 6 + 6


def _extent(sheet: Image.Image, color: tuple[int, int, int]) -> tuple[int, int, int, int]:
    same = (
        ImageChops.difference(sheet, Image.new("RGB", sheet.size, color)).convert("L").point(lambda v: not v and 255)
    )
    return same.getbbox() or (0, 0, 0, 0)
