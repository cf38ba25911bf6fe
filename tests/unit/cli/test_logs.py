"""Logs for programs: one JSON object a line."""

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from giornata.cli.operate.fleet.logs import JsonLines, log_to_stderr
from giornata.cli.settings import load_settings
from giornata.domain.errors import InvalidInput
from giornata.domain.telemetry import log_about, request_id


@pytest.fixture
def lines() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger whose lines are JSON, of the node n."""
    written, logger = io.StringIO(), logging.getLogger("giornata.test-of-json")
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines({"node": "node_1"}))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger, written
    logger.removeHandler(handler)
    logger.propagate = True


def read(written: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_line_says_when_how_grave_who_and_what(lines: tuple[logging.Logger, io.StringIO]) -> None:
    logger, written = lines
    logger.warning("a line with a break\nand %s", '"quotes"')
    (line,) = read(written)
    stamp = str(line.pop("ts"))
    assert stamp.endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "giornata.test-of-json",
        "message": 'a line with a break\nand "quotes"',
        "node": "node_1",
    }


def test_an_error_keeps_its_traceback_within_the_line(lines: tuple[logging.Logger, io.StringIO]) -> None:
    logger, written = lines
    try:
        raise ZeroDivisionError("by nothing")
    except ZeroDivisionError:
        logger.exception("failed")
    (line,) = read(written)
    assert "ZeroDivisionError: by nothing" in str(line["exception"])


def test_lines_say_which_request_job_and_attempt_they_are_about(lines: tuple[logging.Logger, io.StringIO]) -> None:
    logger, written = lines

    def work() -> None:
        token = request_id.set("r1")
        with log_about(job="job_1", attempt="att_1"):
            logger.info("inside")
        logger.info("beside")
        request_id.reset(token)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    logger.info("outside")
    inside, beside, outside = read(written)
    assert (inside["request_id"], inside["job"], inside["attempt"]) == ("r1", "job_1", "att_1")
    assert (beside["request_id"], "job" in beside) == ("r1", False)
    assert "request_id" not in outside


def test_a_line_of_the_access_log_has_the_fields_of_its_request() -> None:
    said = json.dumps({"request_id": "r1", "method": "GET", "route": "/v1/jobs/{job_id}", "status": 404, "job": "j"})
    record = logging.LogRecord("giornata.access", logging.INFO, __file__, 1, said, None, None)
    line = json.loads(JsonLines().format(record))
    assert (line["request_id"], line["status"], line["job"]) == ("r1", 404, "j")
    assert line["message"] == "GET /v1/jobs/{job_id} 404"


def test_the_setting_chooses_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        log_to_stderr("info", load_settings(log_format="json").log_format, always={"node": "n"})
        logging.getLogger("giornata.somewhere").info("begins")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    line = json.loads(capsys.readouterr().err)
    assert (line["message"], line["node"]) == ("begins", "n")
    assert load_settings().log_format == "text"
    with pytest.raises(InvalidInput, match="log_format"):
        load_settings(log_format="xml")
