"""The measure of what a LoRA does: nothing is 0, and files that are not there are named."""

import json
from pathlib import Path

import pytest
from PIL import Image

from giornata.diffusion.formats import write_diffusers, write_kohya
from giornata.diffusion.grid import Row, make_grid
from giornata.diffusion.lora import add_adapters
from giornata.diffusion.lora_effect import main, mean_difference, measure
from giornata.diffusion.lora_facts import facts_of
from giornata.diffusion.models import BaseModel
from giornata.domain.errors import InvalidInput
from giornata.protocol.specs import TrainSpec


def lora(base: BaseModel, path: Path, *, shift: float) -> Path:
    """An adapter as it is before the first step, which does nothing, moved by `shift`."""
    spec = TrainSpec.model_validate({"model": "owner/name", "dataset": "ds_1", "seed": 1, "rank": 4})
    with add_adapters(base, spec) as adapters:
        weights = {name: value + shift for name, value in adapters.tensors().items()}
    return write_diffusers(path, weights, facts_of(spec, step=1, layers_per_block=1))


def test_the_difference_of_two_pictures_is_a_part_of_the_whole_range() -> None:
    black, white = Image.new("RGB", (8, 8)), Image.new("RGB", (8, 8), "white")
    red = Image.new("RGB", (8, 8), (255, 0, 0))
    assert mean_difference(black, black) == 0
    assert mean_difference(black, white) == 1
    assert mean_difference(red, black) == pytest.approx(1 / 3)


def test_a_lora_that_does_nothing_measures_0(tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path) -> None:
    idle = lora(tiny_base, tmp_path / "idle.safetensors", shift=0.0)
    busy = lora(tiny_base, tmp_path / "busy.safetensors", shift=0.2)
    out = tmp_path / "effect.json"
    rows = [f"--row=busy={busy}:a dog", f"--row=idle={idle}:a dog", f"--row=busy again={busy}:a dog"]
    assert main(["--model", str(tiny_folder), "--out", str(out), *rows]) == 0
    effects = json.loads(out.read_text())
    assert effects["idle"] == 0
    assert 0.02 < effects["busy"] <= 1
    assert effects["busy again"] == effects["busy"]


def test_missing_files_are_named_all_at_once(tiny_folder: Path, tmp_path: Path) -> None:
    rows = [Row(label="a", lora=tmp_path / "a", prompt=""), Row(label="b", lora=None, prompt="")]
    with pytest.raises(InvalidInput) as refused:
        measure(tiny_folder, rows)
    assert [fault.where for fault in refused.value.faults] == ["--row a", "--row b"]
    assert main(["--model", str(tiny_folder), "--out", str(tmp_path / "o"), f"--row=a={tmp_path / 'a'}:x"]) == 2


def test_what_diffusers_would_load_by_half_is_refused(
    tiny_base: BaseModel, tiny_folder: Path, tmp_path: Path
) -> None:
    rows = []
    for number, fields in enumerate(({"use_dora": True}, {"adapter_type": "lokr", "output_formats": ["kohya"]})):
        common = {"model": "owner/name", "dataset": "ds_1", "seed": 1, "rank": 4}
        spec = TrainSpec.model_validate({**common, **fields})
        with add_adapters(tiny_base, spec) as adapters:
            facts = facts_of(spec, step=1, layers_per_block=1)
            path = write_kohya(tmp_path / f"{number}.safetensors", adapters.tensors(), facts)
        rows.append(Row(label=str(number), lora=path, prompt=""))
    for refusing in (lambda: measure(tiny_folder, rows), lambda: make_grid(tiny_folder, rows, tmp_path / "grid.png")):
        with pytest.raises(InvalidInput) as refused:
            refusing()
        dora, lokr = refused.value.faults
        assert (dora.where, lokr.where) == ("--row 0", "--row 1")
        assert "pytorch_lora_weights" in dora.hint
        assert "LoKr" in lokr.message
