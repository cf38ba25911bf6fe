"""docs/reference/training-proofs.md names a test for every option that changes training, and each test exists."""

import re
from pathlib import Path

from giornata.protocol.specs import TrainSpec

ROOT = Path(__file__).parents[2]
# What a weight does not depend on: when checkpoints are written, and what is written beside the weights.
CHANGE_NO_WEIGHT = {
    *("checkpointing_steps", "checkpoints_keep_latest", "checkpoints_keep_every", "latent_memory_bytes"),
    "caption_extension",  # captions lie in the dataset when a job begins
    *("output_formats", "output_name", "model_card", "report_to"),
    *("sample_prompts", "sample_steps", "sample_guidance_scale", "validation_steps", "validation_by"),
    "validate_every_n_steps",
    *("wandb_project", "wandb_entity", "wandb_run_name", "wandb_api_key_secret"),
}


def _rows() -> list[tuple[str, str, str]]:
    page = (ROOT / "docs" / "reference" / "training-proofs.md").read_text()
    table = page.partition("<!-- proofs:begin -->")[2].partition("<!-- proofs:end -->")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in table.strip().splitlines()]
    return [(fields, equality, score) for fields, equality, score in (row[:3] for row in cells[2:])]


def _fields(row: tuple[str, str, str]) -> list[str]:
    return re.findall(r"`(\w+)`", row[0])


def test_every_field_that_changes_training_has_its_row():
    named = [field for row in _rows() for field in _fields(row)]
    assert sorted(named) == sorted(set(named))
    assert set(named) == TrainSpec.model_fields.keys() - CHANGE_NO_WEIGHT


def test_every_row_has_a_proof_and_every_test_exists():
    for row in _rows():
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[1])
        assert tests, f"nothing proves {row[0]}"
        for file, test in tests:
            assert f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"


def test_every_score_was_measured():
    """Its name is that of a row of the table in docs/benchmark-log.md."""
    page = (ROOT / "docs" / "benchmark-log.md").read_text()
    measured = page.partition("## What it learns")[2].partition("\n## ")[0]
    names = {line.split("|")[1].strip() for line in measured.splitlines() if line.startswith("| ")}
    for _, _, score in _rows():
        rest = re.sub(r"\(.*?\)", "", score)
        for name in sorted(names, key=len, reverse=True):
            rest = re.sub(rf"(^|[,;]\s*){re.escape(name)}\s*(?=$|[,;])", "", rest)
        assert rest.strip(" ,;") == "", f"docs/benchmark-log.md has no {rest.strip(' ,;')!r}"
