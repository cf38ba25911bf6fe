"""The animation of a demo's log: its lines, when they appear, and an SVG that is well formed."""

from xml.etree import ElementTree

from tools.demo_animation import LEAST_WAIT_S, LONGEST_WAIT_S, draw, read, schedule

LOG = """
 0:09  giornata up is running
 0:10  steps: a 1/300
 0:12  a: taken by local-1
 1:25  ⚡ kill -9 1 2: local-1 is gone
✓ 4 of 4 jobs <succeeded>
"""


def test_read_leaves_out_progress_and_keeps_the_second_of_each_line() -> None:
    lines = read(LOG)
    assert [line.second for line in lines] == [9, 12, 85, None]
    assert "steps:" not in "".join(line.text for line in lines)


def test_schedule_shortens_long_waits_and_keeps_the_order() -> None:
    at_s = schedule(read(LOG))
    assert at_s == [0.0, LONGEST_WAIT_S, 2 * LONGEST_WAIT_S, 2 * LONGEST_WAIT_S + LEAST_WAIT_S]


def test_draw_makes_a_well_formed_picture_with_a_text_for_each_line() -> None:
    root = ElementTree.fromstring(draw(read(LOG)))  # noqa: S314  (our own text)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) == 4
    assert texts[-1] == "✓ 4 of 4 jobs <succeeded>"
