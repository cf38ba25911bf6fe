"""Figures of the benchmark of pictures: seconds, share of the floor, dollars, FLOPs, and the table of `make gpu`."""

import pytest
from benchmarks.generate import figures, options_of, told_ratios
from benchmarks.gpu import tables
from benchmarks.rig.full_model import LAYOUT
from benchmarks.rig.picture_floor import SDXL_IDS, decoding_flops, pass_flops
from benchmarks.rig.picture_sizes import SIZES
from benchmarks.rig.picture_work import PictureRun
from benchmarks.rig.refiner_model import refiner_config

CELLS = {
    "script": [PictureRun(pictures=1, clock_s=10.0, cpu_s=9.0)],
    "joined": [PictureRun(pictures=8, clock_s=16.0, cpu_s=8.0)],
    "attention": [PictureRun(pictures=8, clock_s=20.0, cpu_s=10.0)],
}


def test_a_price_makes_pictures_per_dollar_and_the_floor_a_share() -> None:
    found = figures(CELLS, floor_s=0.5, usd_per_hour=1.8)
    assert found["joined"]["s_per_picture"]["median"] == 2.0
    assert found["joined"]["pictures_per_s"]["median"] == 0.5
    assert found["joined"]["share_of_floor"]["median"] == 0.25
    assert found["joined"]["pictures_per_usd"]["median"] == 1000.0
    assert "pictures_per_usd" not in figures(CELLS, floor_s=0.5, usd_per_hour=None)["joined"]


def test_ratios_are_of_measured_cells_and_have_the_marks_of_the_device() -> None:
    on_cpu, on_cuda = told_ratios(CELLS, "cpu"), told_ratios(CELLS, "cuda")
    assert list(on_cpu) == ["joined / script", "attention / joined"]
    assert on_cpu["joined / script"]["clock"]["median"] == 5.0
    assert on_cpu["attention / joined"]["processor"]["median"] == 0.8
    assert [told["attention / joined"]["mark"] for told in (on_cpu, on_cuda)] == [0.8, 0.85]


def test_sdxls_flops_are_those_that_were_counted_before_at_both_sizes() -> None:
    """6.76 and 7.05 TFLOP a pass, 10.5 a decoding at 1024²."""
    square, published = SIZES["square"], SIZES["published"]
    assert pass_flops(LAYOUT, square, ids=SDXL_IDS) / 1e12 == pytest.approx(6.76, abs=0.01)
    assert pass_flops(LAYOUT, published, ids=SDXL_IDS) / 1e12 == pytest.approx(7.05, abs=0.01)
    assert decoding_flops(LAYOUT, square) / 1e12 == pytest.approx(10.5, abs=0.05)


def test_refiner_of_full_size_reads_the_second_text_encoder_and_a_score() -> None:
    config = refiner_config(LAYOUT, full=True)
    assert config["cross_attention_dim"] == 1280
    assert config["projection_class_embeddings_input_dim"] == 1280 + 5 * 256


def test_a_gpu_draws_sdxl_without_a_server_unless_it_is_told_otherwise() -> None:
    assert options_of([]).size == "tiny" and "fleet" in options_of([]).cells
    on_cuda = options_of(["--device", "cuda"])
    assert (on_cuda.size, on_cuda.scripted) == ("square", 1)
    assert "fleet" not in on_cuda.cells
    assert options_of(["--device", "cuda", "--cells", "fleet"]).cells == ["fleet"]


def test_table_of_pictures_shows_each_size_with_its_cells_and_marks() -> None:
    size = {"width": 1024, "height": 1024, "steps": 30, "refiner_steps": 0}
    told = {
        "size": size,
        "rows": 8,
        "floor": {"flops": 416e12},
        "figures": figures(CELLS, floor_s=0.5, usd_per_hour=None),
        "ratios": told_ratios(CELLS, "cuda"),
    }
    lines = tables.RENDER["drawing"]({"sizes": {"square": told}})
    assert "| square | 1024×1024 | 30 | 0 | 8 | 416 |" in lines
    assert "| square | joined | 2 (2 to 2) | 0.5 (0.5 to 0.5) | 25.00% |" in lines
    assert "| square | attention / joined | 0.8 (0.8 to 0.8) | 0.85 |" in lines
