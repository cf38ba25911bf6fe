"""Count the tokens that CLIP's tokenizer makes of a text.

Source: Radford et al., 2021, arXiv 2103.00020; `simple_tokenizer.py`.

The number equals that of transformers' CLIPTokenizer with the published vocabulary and <|endoftext|> as padding: the
tokenizer of SD 1.x and the first one of SDXL. SDXL's second tokenizer takes each "!" for a token of its own, so a
text with several of them in a row may have more tokens there. Letters that are newer than Python's own Unicode tables
count as signs.
"""

import gzip
import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from heapq import heapify, heappop, heappush
from pathlib import Path

MERGES = Path(__file__).with_name("merges.txt.gz")
WORD_END = "</w>"
CACHED_WORDS, CACHED_CHARS = 1 << 15, 32

_MARKS = re.compile(r"<\|startoftext\|>|<\|endoftext\|>")
_MARKS_AND_NEW = re.compile(r"<\|startoftext\|>|<\|endoftext\|>|<s\d+>")
_WRITTEN_MARKS = {f"<|{name}|>": ("<|", name, "|>") for name in ("startoftext", "endoftext")}
"""In other letters, such as <|EndOfText|>, a mark is no mark but words; they are apart from what is around them."""
_ENDINGS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
_ASCII_WORD = re.compile(
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[a-z]+|[0-9]|[^\sa-z0-9]+", re.ASCII
)
_SPACES = frozenset(" \t\n\v\f\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {
    chr(n) for n in range(0x2000, 0x200B)
}


def token_count(text: str, *, with_new_tokens: bool = False) -> int:
    """Tokens of a text, without the marks of start and end. `with_new_tokens`: words such as <s0> are one each."""
    pieces = (_MARKS_AND_NEW if with_new_tokens else _MARKS).split(text)
    return len(pieces) - 1 + sum(_piece_count(piece) for piece in pieces)


def _piece_count(piece: str) -> int:
    if piece.isascii():
        return sum(map(_word_count, _ASCII_WORD.findall(piece.lower())))
    return sum(map(_word_count, _words(_normalized(piece))))


def _normalized(piece: str) -> str:
    """Lower each character by itself: a sigma at the end of a word becomes an ordinary sigma."""
    return "".join(character.lower() for character in unicodedata.normalize("NFC", piece))


def _words(text: str) -> Iterator[str]:
    """Written marks, endings such as 's, runs of letters, single digits, and runs of other signs but white space."""
    start = 0
    while start < len(text):
        ending = next((each for each in (*_WRITTEN_MARKS, *_ENDINGS) if text.startswith(each, start)), None)
        kind, end = _kind(text[start]), start + 1
        if ending is not None:
            end = start + len(ending)
        elif kind in {"letter", "other"}:
            while end < len(text) and _kind(text[end]) == kind:
                end += 1
        if kind != "space":
            yield text[start:end]
        start = end


@lru_cache(maxsize=4096)
def _kind(character: str) -> str:
    if character in _SPACES:
        return "space"
    return {"L": "letter", "N": "digit"}.get(unicodedata.category(character)[0], "other")


def _word_count(word: str) -> int:
    if word in _WRITTEN_MARKS:
        return sum(map(_kept_word_count, _WRITTEN_MARKS[word]))
    return _kept_word_count(word) if len(word) <= CACHED_CHARS else _merged_count(word)


@lru_cache(maxsize=CACHED_WORDS)
def _kept_word_count(word: str) -> int:
    return _merged_count(word)


def _merged_count(word: str) -> int:
    """Tokens of one word. Of all pairs of neighbors the one that stands first in the vocabulary is joined, until none
    stands there. A heap keeps this at n log n: a stranger's word may have thousands of letters."""
    ranks, letters = _ranks(), _byte_letters()
    parts: list[str | None] = [letters[byte] for byte in word.encode("utf-8", "replace")]
    parts[-1] = f"{parts[-1]}{WORD_END}"
    after, before = list(range(1, len(parts) + 1)), list(range(-1, len(parts) - 1))

    def entry(place: int) -> tuple[int, int, str, str] | None:
        """The pair at this place and the next one: (rank, place, left, right)."""
        if place < 0 or after[place] >= len(parts):
            return None
        left, right = str(parts[place]), str(parts[after[place]])
        rank = ranks.get((left, right))
        return None if rank is None else (rank, place, left, right)

    heap = [found for place in range(len(parts)) if (found := entry(place)) is not None]
    heapify(heap)
    while heap:
        found = heappop(heap)
        _, place, left, right = found
        if parts[place] is None or entry(place) != found:
            continue  # one of the two is part of another pair by now
        gone = after[place]
        parts[place], parts[gone], after[place] = left + right, None, after[gone]
        if after[place] < len(parts):
            before[after[place]] = place
        for changed in (before[place], place):
            if (new := entry(changed)) is not None:
                heappush(heap, new)
    return sum(part is not None for part in parts)


@cache
def _ranks() -> dict[tuple[str, str], int]:
    lines = gzip.decompress(MERGES.read_bytes()).decode("utf-8").splitlines()
    pairs = (line.split(" ") for line in lines)
    return {(left, right): rank for rank, (left, right) in enumerate(pairs)}


@cache
def _byte_letters() -> tuple[str, ...]:
    """The character that stands for each byte: itself where it can be printed, else one from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return tuple(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))
