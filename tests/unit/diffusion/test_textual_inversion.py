"""Which files of textual inversions are read, and what is said of those that are not."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.encode.prompt_embeds import TextualInversion
from giornata.diffusion.files.formats import write_embeddings
from giornata.diffusion.files.textual_inversion import read_textual_inversion
from giornata.domain.errors import Fault, InvalidInput

ROWS = torch.arange(64.0).view(2, 32)


def read(path: Path, tensors: dict[str, torch.Tensor], base: BaseModel) -> TextualInversion:
    file = path / "word.safetensors"
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, file)
    return read_textual_inversion(file, "TOK", base, where="embeddings[0]")


def faults_of(path: Path, tensors: dict[str, torch.Tensor], base: BaseModel) -> list[Fault]:
    with pytest.raises(InvalidInput) as refusal:
        read(path, tensors, base)
    assert {fault.where for fault in refusal.value.faults} == {"embeddings[0]"}
    return list(refusal.value.faults)


@pytest.mark.parametrize("name", ["emb_params", "clip_l", "<any>", "bundle_emb.TOK.clip_l"])
def test_forms_of_sd15_are_read(tiny_sd15_base: BaseModel, tmp_path: Path, name: str) -> None:
    found = read(tmp_path, {name: ROWS.half()}, tiny_sd15_base)
    assert (found.token, [each.tolist() for each in found.vectors_NE]) == ("TOK", [ROWS.tolist()])


def test_textual_inversion_of_one_flat_vector_is_read_as_one_row(tiny_sd15_base: BaseModel, tmp_path: Path) -> None:
    assert read(tmp_path, {"<any>": ROWS[0]}, tiny_sd15_base).vectors_NE[0].shape == (1, 32)


def test_our_own_export_is_read(tiny_base: BaseModel, tmp_path: Path) -> None:
    rows = {"tokens.clip_l": ROWS, "tokens.clip_g": -ROWS}
    path = write_embeddings(tmp_path / "own.safetensors", rows, dtype="float32")
    found = read_textual_inversion(path, "TOK", tiny_base)
    assert [each.tolist() for each in found.vectors_NE] == [ROWS.tolist(), (-ROWS).tolist()]


def test_textual_inversions_with_different_vectors_have_different_hashes(
    tiny_sd15_base: BaseModel, tmp_path: Path
) -> None:
    one, other = (read(tmp_path, {"emb_params": rows}, tiny_sd15_base) for rows in (ROWS, -ROWS))
    assert one.sha256 != other.sha256


def test_file_of_another_family_is_refused(tiny_base: BaseModel, tiny_sd15_base: BaseModel, tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, {"emb_params": ROWS}, tiny_base)
    assert fault.message == "is of Stable Diffusion 1.5, and the base model is of Stable Diffusion XL"
    (fault,) = faults_of(tmp_path, {"clip_l": ROWS, "clip_g": ROWS}, tiny_sd15_base)
    assert fault.message == "is of Stable Diffusion XL, and the base model is of Stable Diffusion 1.5"


def test_every_fault_of_the_vectors_is_told(tiny_base: BaseModel, tmp_path: Path) -> None:
    faults = faults_of(tmp_path, {"clip_l": torch.zeros(2, 16), "clip_g": torch.zeros(80, 32)}, tiny_base)
    assert [fault.message for fault in faults] == [
        "has clip_l of 2 x 16, and the base needs N x 32",
        "has 80 vectors in clip_g, and 1 to 75 fit",
        "has another number of vectors for each text encoder",
    ]


def test_values_that_are_not_finite_are_refused(tiny_sd15_base: BaseModel, tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, {"emb_params": torch.full((1, 32), float("inf"))}, tiny_sd15_base)
    assert "not finite" in fault.message


def test_pickled_file_is_not_opened(tiny_sd15_base: BaseModel, tmp_path: Path) -> None:
    for write in (
        lambda path: torch.save({"emb_params": ROWS}, path),
        lambda path: path.write_bytes(pickle.dumps([1])),
    ):
        file = tmp_path / "word.pt"
        write(file)
        with pytest.raises(InvalidInput, match="is pickled, and such files are never opened"):
            read_textual_inversion(file, "TOK", tiny_sd15_base)


def test_file_of_something_else_is_refused(tiny_sd15_base: BaseModel, tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, {"one": ROWS, "other": ROWS}, tiny_sd15_base)
    assert fault.message == "holds no textual inversion that is known here"
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_textual_inversion(tmp_path / "missing.safetensors", "TOK", tiny_sd15_base)
