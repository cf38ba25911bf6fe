"""The code that a person types: its letters, and how it may be typed."""

from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.accounts.sign_in import START_PATH, is_allowed_email, local_path
from giornata.domain.accounts.user_codes import ALPHABET, read_user_code, user_code_from


@given(st.text(min_size=1), st.sampled_from([" ", "-", "", ".", " - "]))
def test_code_is_read_as_it_is_shown_in_any_case_and_with_any_separators(secret: str, separator: str) -> None:
    code = user_code_from(secret)
    letters = code.replace("-", "")
    assert (len(code), len(letters), set(letters) <= set(ALPHABET)) == (9, 8, True)
    typed = separator.join(letters[at : at + 2] for at in range(0, 8, 2)).lower()
    assert read_user_code(code) == read_user_code(typed) == code


def test_codes_use_every_letter_and_no_vowel() -> None:
    codes = {user_code_from(str(number)) for number in range(2000)}
    assert len(codes) == 2000
    assert set("".join(codes)) == {*ALPHABET, "-"}
    assert set(ALPHABET).isdisjoint("AEIOUY0123456789")


@given(st.text(max_size=40))
def test_typed_text_is_a_code_or_none(typed: str) -> None:
    read = read_user_code(typed)
    assert read is None or read_user_code(read) == read


def test_text_with_another_letter_or_length_is_no_code() -> None:
    for typed in ("", "BCDF", "BCDF-GHJKL", "BCDF-GHJA", "BCDF-GHJ1", "BCDF-GHJ\u00df", "\uff22CDF-GHJK"):
        assert read_user_code(typed) is None, typed


@given(st.text(max_size=60))
def test_browser_is_led_to_a_path_of_this_server(asked: str) -> None:
    path = local_path(asked)
    assert path.startswith("/")
    assert not path.startswith(("//", "/\\"))
    assert path in {asked, START_PATH}


def test_domain_of_an_address_has_to_be_equal() -> None:
    assert is_allowed_email("eve@EXAMPLE.com", ["example.com"])
    assert is_allowed_email("eve@example.com", ["@Example.com"])
    assert is_allowed_email("eve@anything.example", [])
    for email in ("eve@sub.example.com", "eve@example.com.evil", "eve@example.co", "example.com", "eve@"):
        assert not is_allowed_email(email, ["example.com"]), email
