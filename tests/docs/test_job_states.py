"""The diagram of the states of a job shows the transition table, and the file in the docs is up to date."""

from xml.etree import ElementTree

from tools.job_states import FILE, drawing, rows

from giornata.domain.jobs.job import TERMINAL, TRANSITIONS, JobState

SVG = "{http://www.w3.org/2000/svg}"


def test_diagram_in_the_docs_is_drawn_from_the_table() -> None:
    assert FILE.read_text(encoding="utf-8") == drawing(), "run: python -m tools.job_states"


def test_diagram_has_a_box_for_each_state_and_an_arrow_for_each_row() -> None:
    root = ElementTree.fromstring(drawing())  # noqa: S314 - our own drawing
    words = [str(text.text) for text in root.iter(f"{SVG}text")]
    arrows = [each for each in root.iter() if each.get("marker-end")]

    assert words[: len(JobState)] == [*dict.fromkeys(words[: len(JobState)])]
    assert set(words[: len(JobState)]) == set(JobState)
    assert words[len(JobState) :] == ["submit", *(event for _, event in TRANSITIONS)]
    assert len(arrows) == len(TRANSITIONS) + 1


def test_row_goes_from_its_state_to_the_next_one() -> None:
    assert {(source, event): target for event, source, target in rows()[1:]} == {
        (source, str(event)): target for (source, event), target in TRANSITIONS.items()
    }
    assert not TERMINAL & {source for _, source, _ in rows()}
