"""Names and prose have American spelling, as the libraries and interfaces that the project builds on have it."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("src", "docs", "tests", "examples", "tools", "benchmarks", "deploy", "*.md", "Makefile", "pyproject.toml")
WORD = re.compile(r"[A-Za-z_]{4,}")
BRITISH = re.compile(
    r"""
    acknowledgement|aluminium|amongst|analys(?:e|ed|er|ing)(?![a-z])|artefact|behaviour|cancell(?:ed|ing)|catalogue|centr(?:e|ing)
    |colour|counsell(?:ed|ing)|defence|dialogue|endeavour|favour|fibre|flavour|fulfil(?:s|ment)?(?![a-z])|grey|honour
    |instalment|judgement|labell(?:ed|ing)|labour|learnt|licence|manoeuvre|misspelt|modell(?:ed|ing|er)|mould|neighbour|offence
    |practis(?:e|ing)|pretence|programme(?![dr])|rigour|rumour|sceptic|signall(?:ed|ing)|skilful|spoilt|theatre|travell(?:ed|ing)
    |tunnell(?:ed|ing)|vapour|whilst|wilful
    |(?<![a-z])(?:[cdfk]ilo|centi|milli)?(?:metre|litre)s?(?![a-z])
    |(?:authori|capitali|categori|characteri|customi|emphasi|equali|factori|finali|generali|initiali|itemi|locali|materiali
      |maximi|memori|minimi|normali|optimi|organi|paralleli|penali|prioriti|quanti|randomi|reali|recogni|regulari|seriali
      |speciali|stabili|standardi|summari|synchroni|tokeni|utili|vectori|visuali)s(?:e|ed|es|ers?|able|ing|ations?)(?![a-z])
    """,
    re.IGNORECASE | re.VERBOSE,
)
ALLOWED_FILES = re.compile(
    r"""(?:^|/)LICENSE$|/vendor/|^tests/browser/axe/  # texts and scripts of others
    |^tests/fixtures/database_\d+\.sql$               # a database that earlier code wrote
    |^tests/fixtures/skypilot_signatures\.json$       # names of SkyPilot
    |^tests/docs/test_spelling\.py$                   # lists the spellings
    """,
    re.VERBOSE,
)
ALLOWED_WORDS = {
    "CancelledError",  # of asyncio
    "TaskCancelledError",  # of Ray
    "labelledby",  # of HTML: aria-labelledby
    "settings_customise_sources",  # of pydantic-settings
}
# The annotator `grey` of the API, and what tests ask for by this name or as a prompt.
ALLOWED_GREY = {
    "docs/reference/generation.md": 1,
    "src/giornata/diffusion/annotators/inline.py": 1,
    "src/giornata/protocol/generation/annotators.py": 1,
    "tests/contract/diffusion/test_annotators.py": 2,
    "tests/system/faults/test_real_pictures.py": 1,
    "tests/unit/protocol/test_annotator_params.py": 1,
}


def files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PLACES],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return [name for name in listed if (ROOT / name).is_file() and not ALLOWED_FILES.search(name)]


@cache
def is_british(word: str) -> bool:
    return word not in ALLOWED_WORDS and BRITISH.search(word) is not None


def british(text: str) -> list[str]:
    return [word for word in WORD.findall(text) if is_british(word)]


def test_spelling_is_american_in_every_file_and_file_name() -> None:
    found: dict[str, list[str]] = {}
    listed = files()
    assert len(listed) > 2000
    for name in listed:
        try:
            words = british(f"{name}\n{(ROOT / name).read_text(encoding='utf-8')}")
        except UnicodeDecodeError:
            continue  # pictures and weights
        if sum("grey" in word.lower() for word in words) == ALLOWED_GREY.get(name, 0):
            words = [word for word in words if "grey" not in word.lower()]
        if words:
            found[name] = words
    assert found == {}


@pytest.mark.parametrize(
    "text",
    ["COLOURS", "ModelledNode", "unrecognised", "of the centre", "test_a_neighbour", "20 centimetres", "analysed"],
)
def test_british_word_is_found_as_part_of_a_name(text: str) -> None:
    assert british(text) != []


@pytest.mark.parametrize(
    "text",
    ["promised, advise, exercises, precise", "parameter diameter", "asyncio.CancelledError", "programmed programs"],
)
def test_american_word_is_not_found(text: str) -> None:
    assert british(text) == []
