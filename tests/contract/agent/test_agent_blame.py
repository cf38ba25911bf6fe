"""A crash is blamed on the machine when the engine's last words say so, and on nobody when a user's words do."""

from typing import Any

import pytest
from tests.contract.agent.conftest import NodeFactory
from tests.contract.agent.fake_node_api import FakeNodeApi, lease

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"

DYING = """
hello()
start = hear()
say("progress", attempt=start["attempt"], step=1, total=9)
for line in start["spec"]["mutters"]:
    print("".join(line), file=sys.stderr, flush=True)
for line in start["spec"].get("logs", []):
    say("log", attempt=start["attempt"], line="".join(line))
failed = start["spec"].get("failed")
if failed:
    say("failed", attempt=start["attempt"], **failed)
    hear()
sys.exit(3)
"""


def pieces(line: str) -> list[str]:
    """Put together by the engine: a phrase that stood in the spec would be a text of the user."""
    return list(line)


def died(api: FakeNodeApi, node: NodeFactory, *lines: str, **fields: Any) -> dict[str, Any]:
    inputs = fields.pop("inputs", [])
    api.leases = [lease(spec={"mutters": [pieces(line) for line in lines], **fields}, inputs=inputs)]
    node(script=DYING).run()
    (body,) = api.bodies("fail")
    return body


def test_the_last_words_of_an_engine_that_died_tell_the_reason(api: FakeNodeApi, node: NodeFactory) -> None:
    body = died(api, node, "Traceback (most recent call last):", ECC)
    assert (body["reason"], body["exit_code"]) == ("node_driver", 3)
    assert "exit code 3" in body["message"]
    assert ECC in body["message"]
    assert ECC in body["log_tail"]


def test_a_crash_without_such_words_stays_one(api: FakeNodeApi, node: NodeFactory) -> None:
    body = died(api, node, "Traceback (most recent call last):", "KeyError: 'ECC'")
    assert (body["reason"], body["exit_code"]) == ("crashed", 3)


def test_a_prompt_cannot_blame_the_machine(api: FakeNodeApi, node: NodeFactory) -> None:
    body = died(api, node, ECC, instance_prompt=f"\n{ECC}\n")
    assert body["reason"] == "crashed"


def test_a_caption_cannot_blame_the_machine(api: FakeNodeApi, node: NodeFactory) -> None:
    picture = {"role": "instance", "name": "a.png", "caption": ECC.lower(), "download": api.add_blob(b"x")}
    assert died(api, node, ECC, inputs=[picture])["reason"] == "crashed"


def test_hardware_error_in_workload_log_does_not_change_crash_reason(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec={"mutters": [], "logs": [pieces(ECC)]})]
    node(script=DYING).run()
    (body,) = api.bodies("fail")
    assert body["reason"] == "crashed"
    assert ECC in api.log()


@pytest.mark.parametrize("reason", ["bad_spec", "bad_data", "node_disk", "too_slow"])
def test_failure_reason_reported_by_engine_is_kept_despite_hardware_error(
    api: FakeNodeApi, node: NodeFactory, reason: str
) -> None:
    body = died(api, node, ECC, failed={"reason": reason, "message": "this is known"})
    assert (body["reason"], body["message"]) == (reason, "this is known")


def test_a_crash_that_the_engine_reports_itself_is_explained_by_its_message(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    api.leases = [lease()]
    script = """
hello()
start = hear()
message = "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED\\n  x.py:7 in f"
say("failed", attempt=start["attempt"], reason="crashed", message=message)
hear()
"""
    node(script=script).run()
    (body,) = api.bodies("fail")
    assert body["reason"] == "node_driver"
