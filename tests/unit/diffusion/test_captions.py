"""Captions are encoded as the pipeline does it, to the letter, and never cut."""

import errno
import io
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionXLPipeline

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.encode import captions
from giornata.diffusion.encode.captions import EmbeddingCache
from giornata.diffusion.encode.scratch_file import ScratchFile
from giornata.domain.jobs.reasons import Reason
from giornata.workloads.train.faults import reason_of

CAPTIONS = ["a photo of a sks toy", "a \"quoted\"  toy, 'so'", "ein grünes Spielzeug — 玩具 🙂", "", " a toy "]


@pytest.fixture(scope="module")
def pipeline(tiny_base: BaseModel) -> StableDiffusionXLPipeline:
    return StableDiffusionXLPipeline(
        vae=tiny_base.vae,
        text_encoder=tiny_base.text_encoders[0],
        text_encoder_2=tiny_base.text_encoders[1],
        tokenizer=tiny_base.tokenizers[0],
        tokenizer_2=tiny_base.tokenizers[1],
        unet=tiny_base.unet,
        scheduler=tiny_base.noise_scheduler,
        add_watermarker=False,
    )


@pytest.mark.parametrize("caption", CAPTIONS)
def test_caption_encoding_equals_sdxl_pipeline(
    tiny_base: BaseModel, pipeline: StableDiffusionXLPipeline, caption: str
) -> None:
    with torch.no_grad():
        prompt_BLD, _, pooled_BP, _ = pipeline.encode_prompt(caption, do_classifier_free_guidance=False)
        ours = captions.encode(tiny_base.tokenizers, tiny_base.text_encoders, [caption])
    assert torch.equal(ours.prompt_BLD, prompt_BLD)
    assert torch.equal(ours.pooled_BP, pooled_BP)


def test_captions_that_differ_in_quotes_or_script_differ(tiny_base: BaseModel) -> None:
    """D58 of the ancestor: quoting for a shell got into the prompt. What is typed is what is encoded."""
    cache = EmbeddingCache(tokenizers=tiny_base.tokenizers, text_encoders=tiny_base.text_encoders, encoder_key="e")
    cache.fill(["a toy", '"a toy"', "a töy"])
    plain, quoted, umlaut = (cache.batch([text]).prompt_BLD for text in ("a toy", '"a toy"', "a töy"))
    assert not torch.equal(plain, quoted)
    assert not torch.equal(plain, umlaut)


def test_a_cached_batch_is_its_members(tiny_base: BaseModel) -> None:
    cache = EmbeddingCache(tokenizers=tiny_base.tokenizers, text_encoders=tiny_base.text_encoders, encoder_key="e")
    ticks: list[int] = []
    cache.fill([*CAPTIONS, CAPTIONS[0]], lambda: ticks.append(1))
    assert len(cache) == len(ticks) == len(CAPTIONS)
    batch = cache.batch([CAPTIONS[2], CAPTIONS[0], CAPTIONS[2]])
    assert torch.equal(batch.prompt_BLD[0], batch.prompt_BLD[2])
    assert torch.equal(batch.prompt_BLD[1:2], cache.batch([CAPTIONS[0]]).prompt_BLD)
    assert batch.prompt_BLD.shape[:2] == (3, 77)
    assert not batch.prompt_BLD.requires_grad


@pytest.mark.parametrize("count", [10, 60])
def test_embeddings_beyond_the_bound_lie_on_the_disk_to_the_bit(
    tiny_base: BaseModel, tmp_path: Path, count: int
) -> None:
    """The memory of 10,000 captions is that of the bound: the embeddings of SDXL alone would have 3 GB."""
    texts = [f"a toy of number {number}" for number in range(count)]
    tools = {"tokenizers": tiny_base.tokenizers, "text_encoders": tiny_base.text_encoders, "encoder_key": "e"}
    whole = EmbeddingCache(**tools)
    whole.fill(texts)
    each_bytes = whole.in_memory_bytes // count
    bounded = EmbeddingCache(**tools, memory_bytes=4 * each_bytes, directory=tmp_path)
    bounded.fill(texts[: count // 2])
    for text in texts[count // 2 :]:
        bounded.put(text, whole.batch([text]))
    assert bounded.in_memory_bytes == 4 * each_bytes
    assert bounded.in_memory_bytes + bounded.on_disk_bytes == whole.in_memory_bytes
    assert list(tmp_path.iterdir()) == []  # the file has no name
    assert len(bounded) == len(whole) == count
    assert all(text in bounded for text in texts)
    ours, theirs = bounded.batch(texts[::-1]), whole.batch(texts[::-1])
    assert torch.equal(ours.prompt_BLD, theirs.prompt_BLD)
    assert ours.pooled_BP is not None
    assert theirs.pooled_BP is not None
    assert torch.equal(ours.pooled_BP, theirs.pooled_BP)
    bounded.close()
    assert texts[0] not in bounded


def test_half_precision_is_read_from_the_disk_as_it_was(tmp_path: Path) -> None:
    file = ScratchFile(tmp_path)
    first, second = torch.randn(1, 3, 5).bfloat16(), torch.randn(1, 2).bfloat16()
    rows = [file.append([first, second]), file.append([second])]
    assert file.size_bytes == 2 * (15 + 2 + 2)
    for _ in range(2):
        assert [torch.equal(*pair) for pair in zip(file.read(rows[0]), (first, second), strict=True)] == [True, True]
        assert torch.equal(file.read(rows[1])[0], second)


def test_a_full_disk_is_the_nodes_fault_and_names_the_folder(tmp_path: Path) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        ScratchFile(tmp_path, open_file=lambda _: Full()).append([torch.ones(4)])
    assert str(tmp_path) in str(caught.value)
    assert reason_of(caught.value) is Reason.NODE_DISK


def test_caption_of_75_tokens_is_allowed_and_longer_one_is_named_with_hint(tiny_base: BaseModel) -> None:
    tokenizer = tiny_base.tokenizers[0]
    fits = " ".join(["a"] * 75)  # and the start and end marks
    assert len(tokenizer(fits).input_ids) == 77
    assert captions.too_long([("fits.png", fits)], tiny_base.tokenizers) == []
    faults = captions.too_long(
        [("one.png", fits + " a"), ("ok.png", "a toy"), ("two.png", fits + " a a")], tiny_base.tokenizers
    )
    assert [fault.where for fault in faults] == ["one.png", "two.png"]
    assert faults[0].message == "has 76 tokens; at most 75 fit"
    assert faults[1].message == "has 77 tokens; at most 75 fit"
    assert "set max_token_length to 150" in faults[0].hint
    assert "truncate_captions" in faults[0].hint
    assert captions.too_long([("one.png", fits + " a")], tiny_base.tokenizers, max_token_length=150) == []
