"""Every fact has a source and a mark, and rates follow from it."""

import subprocess
import sys
import tomllib
from datetime import date
from importlib import resources

import pytest

from giornata.pretrain.planning.facts import Evidence, Facts, facts_of, load_facts
from giornata.pretrain.planning.pricing import encoder_speed, mfu_of, rate_at, training_speed

FILES = [resources.files("giornata.pretrain.planning").joinpath(name) for name in ("facts.toml", "prices.toml")]
FIRST, SECOND = (tomllib.loads(file.read_text(encoding="utf-8")) for file in FILES)
DOCUMENT = FIRST | SECOND
COUNTED = (
    ("shapes", 96, 1.0923, 0.13656),
    ("shapes", 128, 1.9794, 0.25012),
    ("shapes", 256, 9.8137, 1.2018),
    ("sdxl-tiny", 64, 0.17977, 0.025879),
    ("sdxl-tiny", 96, 0.38295, 0.058964),
    ("sdxl-tiny", 128, 0.67566, 0.10666),
    ("sdxl-tiny", 256, 2.9424, 0.47697),
    ("sd2", 128, 136.55, 67.778),
    ("sd2", 320, 858.34, 428.02),
    ("sd2", 384, 1268.0, 619.66),
    ("sd2", 640, 4082.1, 1775.0),
    ("sd2", 768, 6443.2, 2609.1),
    ("sd2", 896, 9681.4, 3636.8),
)
"""Model, resolution, and 10^9 FLOPs of training and of the VAE, by torch's FlopCounterMode on the meta device."""
WIDTHS = {"sd2": 77 * 1024, "shapes": 77 * 128 + 64, "sdxl-tiny": 77 * 64 + 32}
"""Numbers of a caption's embedding."""


@pytest.fixture
def facts() -> Facts:
    return load_facts()


def test_every_row_says_where_it_comes_from_and_how_it_is_known():
    rows = [(table, row) for table, found in DOCUMENT.items() if table != "defaults" for row in found]
    assert len(rows) > 50
    for table, row in rows:
        assert len(row["source"]) > 5, (table, row)
        assert row["mark"] in set(Evidence), (table, row)


def test_a_row_with_an_unknown_mark_or_without_a_source_is_refused():
    row = DOCUMENT["gpu"][0]
    with pytest.raises(ValueError, match="rumor"):
        facts_of(DOCUMENT | {"gpu": [row | {"mark": "rumor"}]})
    with pytest.raises(ValueError, match="source"):
        facts_of(DOCUMENT | {"gpu": [{name: value for name, value in row.items() if name != "source"}]})


def test_rows_name_only_what_there_is(facts):
    for offer in facts.offers:
        assert facts.instance(offer.instance).name == offer.instance
    for instance in facts.instances:
        assert facts.gpu(instance.gpu).peak_tflops > 0
    for rate in (*facts.training_rates, *facts.encoder_rates):
        assert facts.flops_of(rate.model, rate.resolution) and facts.gpu(rate.gpu)
    for flops in facts.flops:
        assert facts.row_bytes_of(flops.model, flops.resolution).latent_bytes == 2 * 4 * (flops.resolution // 8) ** 2


def test_row_bytes_of_sd2_match_latent_text_and_moments_sizes(facts):
    small, large = facts.row_bytes_of("sd2", 256), facts.row_bytes_of("sd2", 512)
    assert (small.latent_bytes + small.text_bytes, large.latent_bytes + large.text_bytes) == (165_888, 190_464)
    assert small.moments_bytes == 16_384


@pytest.mark.parametrize(("model", "resolution", "train_gflop", "vae_gflop"), COUNTED)
def test_flops_of_a_resolution_that_is_not_listed_are_those_that_were_counted(
    facts, model, resolution, train_gflop, vae_gflop
):
    follows = facts.flops_of(model, resolution)
    assert (follows.train_gflop, follows.vae_gflop) == pytest.approx((train_gflop, vae_gflop), rel=3e-4)
    assert follows.text_gflop == pytest.approx(facts.flops_of(model, 32 if model != "sd2" else 256).text_gflop)
    assert follows.mark == "calculated"


@pytest.mark.parametrize(("model", "resolution", "train_gflop", "vae_gflop"), COUNTED)
def test_latents_and_text_of_a_resolution_that_is_not_listed_are_exact(
    facts, model, resolution, train_gflop, vae_gflop
):
    sizes = facts.row_bytes_of(model, resolution)
    assert (sizes.latent_bytes, sizes.text_bytes) == (2 * 4 * (resolution // 8) ** 2, 2 * WIDTHS[model])


def test_an_instance_is_found_by_its_short_name_too(facts):
    assert facts.instance("p4de") == facts.instance("p4de.24xlarge")
    with pytest.raises(KeyError):
        facts.instance("p9")


@pytest.mark.parametrize(("resolution", "rate", "mfu"), [(256, 5908, 0.319), (512, 1349, 0.325)])
def test_mfu_computed_from_published_rates_matches(facts, resolution, rate, mfu):
    gflop = facts.flops_of("sd2", resolution).train_gflop
    assert mfu_of(images_per_s=rate, gpus=32, peak_tflops=312, gflop=gflop) == pytest.approx(mfu, abs=0.001)


@pytest.mark.parametrize(("resolution", "rate"), [(256, 9256), (512, 2072)])
def test_32_a100_at_half_their_peak(facts, resolution, rate):
    gflop = facts.flops_of("sd2", resolution).train_gflop
    assert rate_at(gpus=32, peak_tflops=312, mfu=0.5, gflop=gflop) == pytest.approx(rate, rel=0.001)


def test_a_published_rate_is_not_estimated_and_everything_else_is(facts):
    flops = facts.flops_of("sd2", 256)
    known = training_speed(facts, flops, gpu="A100-80G", gpus=32)
    assert (known.images_per_s, known.estimated) == (5908, False)
    assert known.basis.startswith("published")
    other = training_speed(facts, flops, gpu="A100-80G", gpus=16)
    assert (other.images_per_s, other.estimated) == (pytest.approx(2954), True)
    assert other.basis == "estimated: the MFU of 32 A100-80G, 32%"
    guessed = training_speed(facts, flops, gpu="H100", gpus=32)
    assert (guessed.images_per_s, guessed.estimated) == (pytest.approx(32 * 989 * 0.4 / 0.5393), True)
    assert guessed.basis == "estimated: roofline at 40% MFU, a guess"


def test_encoders_are_carried_over_by_flops(facts):
    at_256, at_512 = facts.flops_of("sd2", 256), facts.flops_of("sd2", 512)
    known = encoder_speed(facts, at_256, gpu="A10G")
    assert (known.images_per_s, known.estimated) == (pytest.approx(101.85, abs=0.005), False)
    large = encoder_speed(facts, at_512, gpu="A10G")
    assert (large.images_per_s, large.estimated) == (pytest.approx(27.86, abs=0.005), True)
    text = encoder_speed(facts, at_256, gpu="A10G", gflop=at_256.text_gflop)
    assert (text.images_per_s, text.estimated) == (pytest.approx(101.85 * 317.8 / 45.1, abs=0.1), True)
    guessed = encoder_speed(facts, at_256, gpu="H100")
    assert (guessed.images_per_s, guessed.estimated) == (pytest.approx(989 * 0.3 / 0.3178), True)


def test_every_price_has_a_provider_a_day_and_a_page():
    assert len(DOCUMENT["offer"]) > 15
    for offer in DOCUMENT["offer"]:
        assert offer["provider"] and isinstance(offer["read_on"], date), offer
        assert offer["url"].startswith("https://"), offer
        assert offer["read_on"] <= date(2026, 11, 22), offer


def test_four_providers_and_more_have_interruptible_prices():
    rows = [row for row in DOCUMENT["offer"] if (row["book"], row["term"]) == ("2026-11", "interruptible")]
    assert {row["provider"] for row in rows} >= {"AWS", "Google Cloud", "SaladCloud", "RunPod", "Verda", "Hyperstack"}
    assert {row["provider"] for row in rows if "rtx4090" in row["instance"]} == {"SaladCloud", "RunPod"}


def test_planning_loads_no_tensor_library():
    heavy = ("torch", "ray", "numpy", "pyarrow", "diffusers", "transformers", "PIL")
    code = (
        "import sys, giornata.cli.pretraining.pretrain_plan; "
        "import giornata.pretrain.planning.report, giornata.pretrain.planning.from_config; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
