"""The words by which orders of pictures are found."""

import re
from collections.abc import Iterable, Iterator

EVERY_ORDER = ""
"""The term that each order of pictures has."""
STAR = "*"
"""The tag of pictures that have a star. No person can type it."""
MODEL, LORA, RETRIED = "model:", "lora:", "retries:"
"""Kinds of names. RETRIED is the grid of which an order draws cells again."""
MOST_TERMS = 500
"""Terms of one order; of an order with more words the first are kept."""
LONGEST_TERM = 64
_WORD = re.compile(r"\w+")


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text in small letters, cut to 64 characters. Letters and digits that stand alone are no
    words, unless they are no ASCII."""
    for word in _WORD.findall(text.casefold()):
        if len(word) > 1 or not word.isascii():
            yield word[:LONGEST_TERM]


def name_term(kind: str, name: str) -> str:
    """Return the term of a name. `kind` is MODEL, LORA or RETRIED."""
    return (kind + name.strip().casefold())[:LONGEST_TERM]


def terms_of_order(prompts: Iterable[str], *, models: Iterable[str], loras: Iterable[str]) -> list[str]:
    """Return what an order is found by: the words of its prompts, its models and its LoRAs, each once.

    A LoRA that is named JOB@STEP is found by JOB, too.
    """
    found = dict.fromkeys([EVERY_ORDER, *(name_term(MODEL, name) for name in models)])
    for name in loras:
        found |= dict.fromkeys((name_term(LORA, name), name_term(LORA, name.partition("@")[0])))
    for prompt in prompts:
        found |= dict.fromkeys(words_of(prompt))
        if len(found) >= MOST_TERMS:
            break
    return list(found)[:MOST_TERMS]
