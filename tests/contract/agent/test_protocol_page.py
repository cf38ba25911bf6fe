"""docs/reference/protocol.md and the code say the same."""

import re
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from tests.contract.agent.conftest import COUNT_ENGINE
from tests.contract.agent.fake_node_api import lease

from giornata.client.node import NodeClient
from giornata.protocol.node.pipe import FromEngine, ToEngine
from giornata.protocol.node.work import Lease

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "protocol.md").read_text()


def rows(heading: str) -> dict[str, set[str]]:
    """The first two columns of the table under a heading."""
    section = PAGE.partition(f"### {heading}\n")[2].partition("\n#")[0]
    found = re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, flags=re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", fields)) for name, fields in found if name != "type"}


@pytest.mark.parametrize(
    ("heading", "union"), [("What the agent says", ToEngine), ("What the engine says", FromEngine)]
)
def test_the_page_lists_each_message_with_its_fields(heading: str, union: Any) -> None:
    classes = get_args(get_args(union)[0])
    wanted = {each.model_fields["type"].default: set(each.model_fields) - {"type"} for each in classes}
    assert rows(heading) == wanted


def test_the_page_shows_the_counting_engine_as_it_is() -> None:
    shown = PAGE.partition("```python\n")[2].partition("```")[0]
    assert shown == COUNT_ENGINE.read_text()


class Anything:
    """A body whose content does not matter here."""

    wait_s = 0.0

    def model_dump_json(self) -> str:
        return "{}"


def test_the_page_lists_each_route_that_the_client_calls() -> None:
    called: set[str] = set()

    def handle(request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/node/")
        path = path.replace("att_1", "{id}").replace("the-upload", "{upload_id}").replace("the-key", "{key}")
        called.add(f"{request.method} {path.replace('/7/', '/{step}/')}")
        return httpx.Response(500)

    client = NodeClient(httpx.Client(base_url="http://server", transport=httpx.MockTransport(handle)), node_key="k")
    mine = Lease.model_validate(lease())
    own: dict[str, tuple[Any, ...]] = {
        "claim": (Anything(),),
        "policy": ("far",),
        "report_checks": (Anything(),),
    }
    more: dict[str, tuple[Any, ...]] = {
        "renew_upload": ("the-upload", Anything()),
        "reject_checkpoint": (7, "why"),
        "get_cache": ("the-key",),
        "commit_cache": ("the-key", Anything()),
    }
    for name in (name for name in vars(NodeClient) if not name.startswith("_")):
        arguments = own.get(name) or (mine, *more.get(name, (Anything(),)))
        with pytest.raises(Exception, match="500"):
            getattr(client, name)(*arguments)
    listed = {
        f"{method} {path}" for method, path in re.findall(r"^\| `([A-Z]+) ([^`]+)` \|", PAGE, flags=re.MULTILINE)
    }
    assert listed == called
