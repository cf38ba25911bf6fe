"""The pages of webhooks say what the code does, and their receiver works."""

import re
import threading
import time
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from giornata.control.notifications.sealed_target import new_secret
from giornata.domain.accounts.notifications import RETRY_DELAYS_S
from giornata.protocol.events import MEANING, OPERATOR_MEANING, EventType, OperatorEvent
from giornata.protocol.project.webhook_endpoints import EVENT_GROUPS, EVENT_NAMES, WebhookFormat
from giornata.protocol.project.webhooks import signed_headers

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "webhooks.md").read_text()
HOW_TO = (DOCS / "how-to" / "webhooks.md").read_text()


@pytest.fixture
def receiver() -> Iterator[tuple[dict[str, Any], str]]:
    """The receiver of the page on a real port: its module, and its URL."""
    found = re.search(r"<!-- receiver:begin -->\n```python\n(.*?)```", HOW_TO, re.DOTALL)
    assert found is not None
    module: dict[str, Any] = {"__name__": "receiver"}
    exec(found[1], module)  # noqa: S102 - the page's own program
    module["SECRET"] = new_secret()
    with HTTPServer(("127.0.0.1", 0), module["Receiver"]) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield module, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_receiver_of_the_page_takes_what_is_signed_once_and_refuses_the_rest(
    receiver: tuple[dict[str, Any], str], capfd: pytest.CaptureFixture[str]
) -> None:

    module, url = receiver
    body = b'{"id":"evt_1","type":"job.succeeded","job_id":"job_1","data":{}}'
    headers = signed_headers([module["SECRET"]], delivery_id="evt_1", timestamp_s=int(time.time()), body=body)
    statuses = [httpx.post(url, content=body, headers=headers).status_code for _ in range(2)]
    forged = httpx.post(url, content=body + b" ", headers=headers).status_code
    assert (statuses, forged) == ([204, 204], 401)
    assert capfd.readouterr().out == "job.succeeded job_1 {}\n"


def test_reference_lists_every_event_and_every_format() -> None:
    assert (set(MEANING), set(OPERATOR_MEANING)) == (set(EventType), set(OperatorEvent))
    assert [name for name in EVENT_NAMES if f"| `{name}` |" not in REFERENCE] == []
    assert [each for each in WebhookFormat if f"| `{each}` |" not in REFERENCE] == []
    assert {"job.*", "machine.*", "fleet.*"} <= set(EVENT_GROUPS)


def test_reference_tells_the_pauses_between_tries() -> None:
    def words(delay_s: float) -> str:
        units = ((3600, "h"), (60, "min"), (1, "s"))
        return next(f"{delay_s / size:g} {unit}" for size, unit in units if delay_s >= size)

    *first, last = map(words, RETRY_DELAYS_S)
    assert f"after about {', '.join(first)} and {last}, each" in " ".join(REFERENCE.split())
