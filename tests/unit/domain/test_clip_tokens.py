"""Tokens are counted without transformers, and as many as transformers counts."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from giornata.diffusion.families.vocabulary import END, clip_tokenizer
from giornata.domain.clip import token_count
from giornata.domain.files.caption_length import longest_order, too_long

PIECES = (
    *("a photo of ", "sks", "TOK", "ohwx man", "1girl", "masterpiece", "2024", "3.14", ",", ", ", ". ", "(red:1.2)"),
    *("it's", "I'LL", "we've", "'", "''s", "don't", "!", "!!", "?!", "...", "_", "__", "-", "\\", "\n", "\t", "  "),
    *("É", "e\u0301", "naïve", "Straße", "ΣΑΣ", "İ", "ǅ", "ﬁ", "中文", "日本語", "한국어", "각", "ไทย", "עברית"),
    *(
        "🙂",
        "👩‍🚀",
        "🏳️‍🌈",
        "\u200d",
        *("🙂", "👩\u200d🚀", "🏳\ufe0f\u200d🌈", "\u200d", "\ufeff", "\xa0", "\u2028", "\u3000"),
        *("\x00", "\x1c", "\x85", "½", "²", "Ⅷ", "٣"),
        "\xa0",
        "\u2028",
        "\u3000",
        "\x00",
        "\x1c",
        "\x85",
        "½",
        "²",
        "Ⅷ",
        "٣",
    ),
    *("<|startoftext|>", "<|endoftext|>", "<|ENDOFTEXT|>", "<s0>", "</w>", "pneumonoultramicroscopicsilicovolcano"),
)
# Half characters cannot be handed to transformers; of letters that are newer than this Python's tables it knows more.
ASSIGNED = st.characters(exclude_categories=("Cs", "Cn"))
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    st.text(alphabet=ASSIGNED, max_size=80),
    st.text(alphabet=st.characters(max_codepoint=0x2FF), max_size=120),
    st.text(alphabet="abcdefgh", min_size=60, max_size=300),
)


@pytest.fixture(scope="module")
def tokenizer():
    return clip_tokenizer(pad_token=END)


def test_the_number_is_that_of_transformers(tokenizer):
    @settings(max_examples=1000, deadline=None, derandomize=True)
    @given(TEXTS)
    def check(text):
        assert token_count(text) == len(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    check()


def test_every_character_of_the_basic_plane_counts_as_in_transformers(tokenizer):
    texts = [f"a{chr(code)}b'{chr(code)}{chr(code)}1" for code in range(0xD800) if code < 0x3400 or code % 89 == 0]
    ids = tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
    assert [text for text, each in zip(texts, ids, strict=True) if token_count(text) != len(each)] == []


def test_a_new_token_is_one_and_without_new_tokens_a_word_like_any_other(tokenizer):
    text = "a photo of <s0><s1>dog"
    assert token_count(text) == len(tokenizer(text, add_special_tokens=False).input_ids)
    knowing = clip_tokenizer(pad_token=END)
    knowing.add_tokens(["<s0>", "<s1>"])
    assert token_count(text, with_new_tokens=True) == len(knowing(text, add_special_tokens=False).input_ids) == 6


def test_half_a_character_is_counted_and_breaks_nothing():
    assert token_count("a \ud83d b") >= 3


def test_a_word_without_an_end_is_counted_at_once():
    """Thousands of letters in a row: n log n, and not the square of them."""
    assert 500 < token_count("qzxj" * 5_000) <= 20_000


def test_torch_and_transformers_are_not_loaded_for_it():
    code = (
        "import sys; from giornata.domain.clip import token_count; assert token_count('ein Hund in Köln') > 4;"
        "print(sorted({'torch', 'transformers', 'tokenizers', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---- what is said of them


def test_all_that_do_not_fit_are_told_the_first_twenty_by_name():
    named = [(f"{number:02}.png", "x" * (70 + number)) for number in range(40)]
    faults = too_long(named, count=len, limit=75)
    assert [fault.where for fault in faults] == [*(f"{number:02}.png" for number in range(6, 26)), "captions"]
    assert faults[0].message == "has 76 tokens; at most 75 fit"
    assert faults[-1].message == "14 more have more than 75 tokens; the longest has 109"


@pytest.mark.parametrize(
    ("tokens", "limit", "wider"),
    [(76, 75, "150"), (150, 75, "150"), (151, 75, "225"), (225, 150, "225"), (226, 75, None), (226, 225, None)],
)
def test_caption_length_fault_hints_at_sufficient_max_token_length_or_shortening(tokens, limit, wider):
    (fault,) = too_long([("a.png", "x" * tokens)], count=len, limit=limit)
    assert ("max_token_length" in fault.hint) == (wider is not None)
    assert wider is None or f"set max_token_length to {wider}" in fault.hint
    assert "shorten it" in fault.hint and "truncate_captions" in fault.hint


def test_longest_order_of_shuffled_caption_has_most_tokens_of_all_orders():
    parts = ["sks dog!!", "a cat", "wow...", "red, "]
    caption = ";".join(parts)

    def orders(rest):
        if not rest:
            yield []
        for place, each in enumerate(rest):
            yield from ([each, *more] for more in orders([*rest[:place], *rest[place + 1 :]]))

    for separator, kept in ((";", 0), (";", 1), (";", 4)):
        longest = longest_order(caption, separator=separator, kept=kept, count=token_count)
        stripped = [part.strip() for part in parts]
        counts = [token_count(f"{separator} ".join([*stripped[:kept], *rest])) for rest in orders(stripped[kept:])]
        assert token_count(longest) == max(counts)
        assert sorted(longest.split("; ")) == sorted(stripped)
        assert longest.split("; ")[:kept] == stripped[:kept]
