"""`POST /v1/images/generations`, asked by the public `openai` package."""

import base64
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.fixtures.drawn_orders import DrawingNode, drawn_bytes
from tests.fixtures.served import QUICK, Served, serving

from giornata.client.trust import trusted

MODEL = "some/model"


@pytest.fixture
def asking() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def client_of(served: Served, key: str | None = None) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(verify=trusted())
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=key or served.keys.member, http_client=http)


def drawn(served: Served, asked: "Future[Any]", *, blocked: tuple[int, ...] = ()) -> Any:
    """The answer, for which a node draws everything that waits meanwhile."""
    node = DrawingNode(served=served)
    while not asked.done() and not node.work(blocked=blocked):
        pass
    return asked.result(timeout=30)


def test_pictures_are_answered_by_urls(served: Served, asking: ThreadPoolExecutor) -> None:
    generate = client_of(served).images.generate
    extra = {"seed": 20, "negative_prompt": "rain"}
    reply = drawn(
        served,
        asking.submit(generate, model=MODEL, prompt="a fox", n=2, size="1216x896", user="ann", extra_body=extra),
    )
    assert [served.http.get(each.url).content for each in reply.data] == [drawn_bytes(20), drawn_bytes(21)]
    assert (reply.size, reply.output_format) == ("1216x896", "png")
    assert [each.revised_prompt for each in reply.data] == [None, None]
    (job,) = served.client().jobs(labels={"user": "ann"}, include=["spec"])  # type: ignore[list-item]
    assert job.spec["negative_prompt"] == "rain" and reply.created == int(job.created_at.timestamp())


def test_pictures_are_answered_in_the_reply_itself(served: Served, asking: ThreadPoolExecutor) -> None:
    generate = client_of(served).images.generate
    asked = asking.submit(
        generate, model=MODEL, prompt="a {red|blue} fox", response_format="b64_json", extra_body={"seed": 7}
    )
    (image,) = drawn(served, asked).data
    assert base64.b64decode(image.b64_json) == drawn_bytes(7)
    assert image.url is None and image.revised_prompt in {"a red fox", "a blue fox"}


def test_blocked_pictures_are_left_out_and_none_left_is_an_error(served: Served, asking: ThreadPoolExecutor) -> None:
    generate = client_of(served).images.generate
    reply = drawn(served, asking.submit(generate, model=MODEL, prompt="a", n=2), blocked=(1,))
    assert len(reply.data) == 1
    with pytest.raises(openai.BadRequestError, match="safety checker") as refused:
        drawn(served, asking.submit(generate, model=MODEL, prompt="a", n=2), blocked=(0, 1))
    assert refused.value.param == "prompt"


def test_errors_are_those_of_the_package(standing: Served) -> None:
    client = client_of(standing)
    with pytest.raises(openai.BadRequestError) as refused:
        client.images.generate(model=MODEL, prompt="a (fox", size="5x5", extra_body={"sede": 1})
    assert (refused.value.type, refused.value.code) == ("invalid_request_error", "invalid-input")
    assert all(word in refused.value.message for word in ("prompt", "size", "sede"))
    with pytest.raises(openai.BadRequestError) as refused:
        client.images.generate(model=MODEL, prompt="a", n=11)
    assert refused.value.param == "n"
    with pytest.raises(openai.AuthenticationError) as unknown:
        client_of(standing, "gk_unknown").images.generate(model=MODEL, prompt="a")
    assert unknown.value.code == "invalid_api_key"
    with pytest.raises(openai.PermissionDeniedError):
        client_of(standing, standing.keys.node).images.generate(model=MODEL, prompt="a")


def places_of(refusal: openai.BadRequestError) -> list[str]:
    assert isinstance(refusal.body, dict)
    return [said.partition(": ")[0] for said in refusal.body["message"].split("; ") if ": " in said]


def test_faults_of_own_parameters_and_of_the_spec_behind_them_are_told_together(standing: Served) -> None:
    extra = {"sede": 1, "mask": "0" * 64, "loras": ["stile"], "high_resolution": {"width": 1024, "height": 1024}}
    with pytest.raises(openai.BadRequestError) as refused:
        client_of(standing).images.generate(
            model=MODEL,
            prompt="a (fox",
            n=0,
            size="wide",  # type: ignore[call-overload]
            response_format="png",  # type: ignore[arg-type]
            output_compression=50,
            extra_body=extra,
        )
    assert {"n", "size", "response_format", "sede", "mask", "loras.0", "prompt", "output_compression"} <= set(
        places_of(refused.value)
    )
    assert "high_resolution" not in refused.value.message, "it is larger than a size that is not known"
    with pytest.raises(openai.BadRequestError) as refused:
        client_of(standing).images.generate(model="", prompt=7, extra_body={"seed": "x"})  # type: ignore[call-overload]
    assert places_of(refused.value) == ["prompt", "model", "seed"]
    with pytest.raises(openai.PermissionDeniedError):
        client_of(standing, standing.keys.node).images.generate(model=MODEL, prompt="a", n=0)


def test_pictures_that_take_too_long_are_canceled_and_not_asked_for_again(tmp_path: Path) -> None:
    settings = QUICK.__class__(stream_poll_s=0.02, images_wait_s=0.05)
    with serving(tmp_path, settings) as served:
        with pytest.raises(openai.InternalServerError, match="was canceled"):
            client_of(served).images.generate(model=MODEL, prompt="a")
        (job,) = served.client().jobs()
        assert job.state == "canceled"


def test_client_that_leaves_cancels_its_order(served: Served) -> None:
    hurried = client_of(served).with_options(timeout=0.5, max_retries=0)
    with pytest.raises(openai.APITimeoutError):
        hurried.images.generate(model=MODEL, prompt="a")
    (job,) = served.client().jobs()
    assert served.client().wait(job.id, timeout_s=20).state == "canceled"


def test_body_that_is_refused_before_the_route_sees_it_has_the_same_shape(standing: Served) -> None:
    headers = {"Content-Type": "application/json"}
    refused = {
        b'{"n": NaN}': "invalid-input",
        b'{"prompt": "\xff"}': "invalid-input",
        b" " * (2**20 + 1): "too-large",
    }
    for content, code in refused.items():
        reply = standing.call(
            "POST", "/v1/images/generations", standing.keys.member, content=content, headers=headers
        )
        assert reply.json()["error"]["code"] == code
