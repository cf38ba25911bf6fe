"""The code that a person types to sign a device in (RFC 8628, section 6.1).

It has consonants alone, so that it spells no word. Eight of them make 25.6 billion codes.
"""

import hashlib

ALPHABET = "BCDFGHJKLMNPQRSTVWXZ"
CODE_LETTERS = 8


def user_code_from(secret: str) -> str:
    """Return the code that belongs to a random secret of at least 256 bits, such as `BCDF-GHJK`."""
    number, letters = int.from_bytes(hashlib.sha256(secret.encode()).digest()), ""
    while len(letters) < CODE_LETTERS:
        number, rest = divmod(number, len(ALPHABET))
        letters += ALPHABET[rest]
    return _shown(letters)


def read_user_code(typed: str) -> str | None:
    """Return the code as it is shown, whichever case and separators it was typed with; None for what is no code."""
    letters = "".join(each for each in typed.upper() if each.isalnum())
    if len(letters) != CODE_LETTERS or not set(letters) <= set(ALPHABET):
        return None
    return _shown(letters)


def _shown(letters: str) -> str:
    half = CODE_LETTERS // 2
    return f"{letters[:half]}-{letters[half:]}"
