"""CLIP's tokenizer, from the byte-pair merges that OpenAI published it with (`domain/clip`, MIT license).

Both families use the one vocabulary: 256 bytes, the same at a word's end, 48894 merges, a mark for each end.
"""

import gzip

from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTokenizer

from giornata.domain.clip import MERGES

MAX_TOKENS = 77
START, END = "<|startoftext|>", "<|endoftext|>"


def clip_tokenizer(*, pad_token: str) -> CLIPTokenizer:
    """Return the tokenizer of the published models, padded as one of their text encoders wants it."""
    lines = gzip.decompress(MERGES.read_bytes()).decode("utf-8").splitlines()
    merges = [(left, right) for left, right in (line.split(" ") for line in lines)]
    # The order of bytes is that of the characters which stand for them, printable ones first.
    alphabet = sorted(ByteLevel.alphabet())
    tokens = [*alphabet, *(f"{character}</w>" for character in alphabet), *(left + right for left, right in merges)]
    vocabulary = {token: number for number, token in enumerate([*tokens, START, END])}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, pad_token=pad_token, model_max_length=MAX_TOKENS)
