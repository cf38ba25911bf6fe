"""A node looks at its machine before it takes work; each check has a machine that fails it and one that does not."""

import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.contract.agent.conftest import NodeFactory
from tests.contract.agent.fake_node_api import FakeNodeApi, cut, lease, problem

from giornata.agent.claiming import ExitCode
from giornata.agent.machine.node_probes import NodeProbes, caches_of
from giornata.agent.machine.nvidia_smi import query_gpu
from giornata.domain.files.transfers import MIN_PROBE_BYTES, probe_bytes, probe_sha256
from giornata.domain.machines.node_checks import GIB, MIB

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
SMI = "550.54.14, 24210\n"


def smi(said: str = SMI) -> Callable[[Sequence[str]], str]:
    return lambda _: said


def fails(error: Exception) -> Callable[[Sequence[str]], str]:
    def run(_: Sequence[str]) -> str:
        raise error

    return run


def probes(**fields: Any) -> NodeProbes:
    standard = {"run": smi(), "free_bytes": lambda _: 100 * GIB, "wall_clock_s": NOW.timestamp}
    standard["total_bytes"] = lambda _: 30 * GIB
    return NodeProbes(**(standard | fields))


def asks(api: FakeNodeApi, **thresholds: Any) -> None:
    body = {"at": NOW.isoformat(), **thresholds}
    api.always["policy"] = lambda _: httpx.Response(200, json=body)


class Notes:
    """A provider that remembers."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def leave(self, reason: str) -> None:
        self.reasons.append(reason)


def test_a_fit_node_says_what_it_measured_and_works(api: FakeNodeApi, node: NodeFactory) -> None:
    asks(api, min_driver="550", min_vram_bytes=20 * GIB, min_disk_bytes=50 * GIB, max_clock_skew_s=5)
    api.leases = [lease()]
    assert node(probes=probes()).run() == ExitCode.DONE
    assert api.routes(without=())[:3] == ["policy", "checks", "claim"]
    (said,) = api.bodies("checks")
    assert (said["shortcomings"], said["leaving"]) == ([], False)
    assert said["figures"]["driver"] == "550.54.14"
    assert said["figures"]["free_vram_bytes"] == 24210 * MIB
    assert said["figures"]["free_disk_bytes"] == 100 * GIB
    assert said["figures"]["model_store_bytes"] == 30 * GIB  # all of the disk: the setting allows more
    assert said["kinds"] == ["x-count"]
    assert api.artifacts


def test_a_node_whose_engine_does_not_start_says_so_and_asks_for_no_other_machine(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    """Its image may be the bad one, on whichever machine: who replaces machines keeps count."""
    asks(api)
    provider = Notes()
    assert node(script="sys.exit('no GPU')", probes=probes(), provider=provider).run() == ExitCode.UNUSABLE
    first, last = api.bodies("checks")
    assert (first["leaving"], first["shortcomings"], first["node"]["engine_pid"]) == (False, [], None)
    assert last["leaving"] is True
    assert "engine" in last["shortcomings"][0]
    assert (provider.reasons, api.bodies("claim")) == ([], [])


UNFIT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"min_driver": "560"}, {}, "the graphics driver is 550.54.14"),
    ({"min_driver": "500"}, {"run": fails(FileNotFoundError())}, "nvidia-smi is not there"),
    ({"min_vram_bytes": 40 * GIB}, {}, "23.6 GiB of GPU memory are free"),
    ({"min_disk_bytes": 200 * GIB}, {}, "100.0 GiB of disk are free"),
    ({"max_clock_skew_s": 5}, {"wall_clock_s": lambda: NOW.timestamp() - 60}, "the clock is 60.0 s behind"),
]


@pytest.mark.parametrize(("wanted", "found", "said"), UNFIT)
def test_an_unfit_node_says_why_and_leaves_without_a_claim(
    api: FakeNodeApi,
    node: NodeFactory,
    wanted: dict[str, Any],
    found: dict[str, Any],
    said: str,
) -> None:
    asks(api, **wanted)
    provider = Notes()
    made = node(probes=probes(**found), provider=provider)
    assert made.run() == ExitCode.UNFIT
    (report,) = api.bodies("checks")
    assert report["leaving"] is True
    assert said in report["shortcomings"][0]
    assert said in provider.reasons[0]
    assert api.bodies("claim") == []
    assert made.left_behind() == []


@pytest.mark.parametrize("found", [found for _, found, _ in UNFIT])
def test_the_same_machine_is_fit_for_a_fleet_that_asks_for_nothing(
    api: FakeNodeApi, node: NodeFactory, found: dict[str, Any]
) -> None:
    asks(api)
    provider = Notes()
    assert node(probes=probes(**found), provider=provider).run() == ExitCode.DONE
    assert provider.reasons == []
    assert len(api.bodies("claim")) == 1


def test_memory_that_a_dying_process_still_holds_sends_nobody_away(api: FakeNodeApi, node: NodeFactory) -> None:
    asks(api, min_vram_bytes=20 * GIB)
    said = ["550.54.14, 900\n", SMI]
    provider = Notes()
    made = node(probes=probes(run=lambda _: said.pop(0)), provider=provider)
    assert made.run() == ExitCode.DONE
    assert made.naps[0] == 15.0
    assert provider.reasons == []
    assert [each["shortcomings"] for each in api.bodies("checks")] == [[]]


def test_a_server_from_before_there_were_checks_gets_its_nodes(api: FakeNodeApi, node: NodeFactory) -> None:
    api.always["policy"] = problem(404, "not-found")
    assert node(probes=probes()).run() == ExitCode.DONE
    assert api.routes(without=()) == ["policy", "claim"]


def test_a_server_that_is_away_at_the_start_is_asked_again(api: FakeNodeApi, node: NodeFactory) -> None:
    asks(api, min_driver="560")
    api.answers["policy"] = [cut, problem(503, "unavailable")]
    made = node(probes=probes())
    assert made.run() == ExitCode.UNFIT
    assert len(api.bodies("policy")) == 3
    assert len(made.naps) == 3  # after two tries, and before the second look


def test_a_report_that_does_not_arrive_keeps_no_fit_node_from_work(api: FakeNodeApi, node: NodeFactory) -> None:
    asks(api)
    api.always["checks"] = problem(503, "unavailable")
    api.leases = [lease()]
    assert node(probes=probes()).run() == ExitCode.DONE
    assert api.artifacts


class Disk:
    """Free bytes that a test plays with: one reading after the other, then the last for ever."""

    def __init__(self, *readings: int) -> None:
        self.readings = list(readings)

    def __call__(self, _: Path) -> int:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


NAMED_ENGINE = """
say("hello", protocol=1, pid=os.getpid(), kinds=["x-count"], device="a card")
start = hear()
if start["type"] == "start":
    say("done", attempt=start["attempt"], step=1)
    hear()
"""


def test_claims_pause_while_the_disk_is_full_and_go_on_afterwards(api: FakeNodeApi, node: NodeFactory) -> None:
    asks(api, min_disk_bytes=50 * GIB)
    disk = Disk(100 * GIB, 10 * GIB, 10 * GIB, 100 * GIB)
    api.leases = [lease()]
    made = node(script=NAMED_ENGINE, probes=probes(free_bytes=disk))
    assert made.run() == ExitCode.DONE
    assert [len(each["shortcomings"]) for each in api.bodies("checks")] == [0, 1, 1, 0]
    assert not any(each["leaving"] for each in api.bodies("checks"))
    assert made.naps[:2] == [30.0, 30.0]
    assert len(api.bodies("complete")) == 1
    # It is the same machine while its engine is away.
    assert [each["node"]["device"] for each in api.bodies("checks")] == ["", "a card", "a card", "a card"]


def test_a_node_whose_claims_pause_hears_that_it_shall_leave(api: FakeNodeApi, node: NodeFactory) -> None:
    asks(api, min_disk_bytes=50 * GIB)
    api.answers["checks"] = [
        lambda _: httpx.Response(200, json={}),
        lambda _: httpx.Response(200, json={"drain": True}),
    ]
    made = node(probes=probes(free_bytes=Disk(100 * GIB, 10 * GIB)))
    assert made.run() == ExitCode.DONE
    assert api.bodies("claim") == []


def test_a_node_that_stays_unfit_leaves(api: FakeNodeApi, node: NodeFactory) -> None:
    asks(api, min_disk_bytes=50 * GIB)
    provider = Notes()
    made = node(probes=probes(free_bytes=Disk(100 * GIB, 10 * GIB)), provider=provider, unfit_s=0.0)
    assert made.run() == ExitCode.UNFIT
    assert "10.0 GiB of disk are free" in provider.reasons[0]
    assert api.bodies("claim") == []


ENGINE_ON_A_CARD = """
say("hello", protocol=1, pid=os.getpid(), kinds=["x-count"], free_vram_bytes=%d * 2**30)
hear()
"""


@pytest.mark.parametrize(("gib", "fit"), [(21, True), (19, True), (18, False)])
def test_memory_that_others_took_since_the_start_pauses_claims(
    api: FakeNodeApi, node: NodeFactory, gib: int, fit: bool
) -> None:
    """The engine's own context may take its gigabyte."""
    asks(api, min_vram_bytes=20 * GIB)
    made = node(script=ENGINE_ON_A_CARD % gib, probes=probes(), unfit_s=0.0)
    assert made.run() == (ExitCode.DONE if fit else ExitCode.UNFIT)
    assert bool(api.bodies("claim")) is fit


def test_node_cache_files_count_as_usable_disk_space(tmp_path: Path) -> None:
    work, hub = tmp_path / "work", tmp_path / "hub"
    (work / "cache" / "ab").mkdir(parents=True)
    (work / "cache" / "ab" / "blob").write_bytes(b"x" * 3000)
    hub.mkdir()
    (hub / "weights").write_bytes(b"x" * 5000)
    (tmp_path / "foreign").write_bytes(b"x" * 7000)
    caches = caches_of({"HF_HUB_CACHE": str(hub), "HOME": str(tmp_path)}, work)
    found = probes(free_bytes=lambda _: 1000, caches=(*caches, tmp_path / "absent"))
    (work / "models").mkdir()
    (work / "models" / ("0" * 64)).write_bytes(b"x" * 400)
    assert found.usable_bytes(work, wanted=5000) == 9400
    assert found.usable_bytes(work, wanted=1000) == 1000  # enough: nothing is looked at
    assert caches_of({"HF_HOME": "/h"}, work) == (work / "cache", work / "models", Path("/h/hub"))


# ---- the graphics driver


@pytest.mark.parametrize(
    ("run", "trouble"),
    [
        (fails(FileNotFoundError()), "nvidia-smi is not there"),
        (fails(subprocess.TimeoutExpired("nvidia-smi", 30)), "has not answered within 30 s"),
        (
            fails(subprocess.CalledProcessError(18, "nvidia-smi", "Failed to initialize NVML: mismatch\n", "")),
            "ended with 18: Failed to initialize NVML: mismatch",
        ),
        (smi("No devices were found\n"), "said: No devices were found"),
        (smi(""), "said:"),
    ],
)
def test_a_driver_that_does_not_answer_is_known_by_its_words(
    run: Callable[[Sequence[str]], str], trouble: str, tmp_path: Path
) -> None:
    found = query_gpu(run, visible=None, module=tmp_path / "absent")
    assert (found.driver, found.free_vram_bytes) == (None, None)
    assert trouble in str(found.trouble)


def test_the_first_visible_device_is_looked_at(tmp_path: Path) -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> str:
        commands.append(command)
        return SMI

    query_gpu(run, visible=" 3,1")
    query_gpu(run, visible=None)
    assert commands[0][-1] == "--id=3"
    assert not any(each.startswith("--id") for each in commands[1])


def test_gpu_query_without_nvidia_smi_reads_driver_version_from_kernel_module(tmp_path: Path) -> None:
    module = tmp_path / "version"
    lines = [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (builder)",
    ]
    found = []
    for line in lines:
        module.write_text(f"{line}\nGCC version: gcc 12.3.0\n")
        found.append(query_gpu(fails(FileNotFoundError()), visible=None, module=module).driver)
    assert found == ["550.54.14", "570.86.15"]


def test_a_card_that_does_not_tell_its_memory_is_no_broken_driver() -> None:
    found = query_gpu(smi("550.54.14, [N/A]\n"), visible=None)
    assert (found.driver, found.free_vram_bytes) == ("550.54.14", None)
    assert "[N/A]" in str(found.trouble)


# ---- links


def test_links_are_measured_by_the_urls_of_the_policy(api: FakeNodeApi, node: NodeFactory) -> None:
    content = probe_bytes(MIN_PROBE_BYTES)
    put = {
        "method": "PUT",
        "url": f"{api.base_url}/storage/upload/probe",
        "headers": {},
        "expires_at": NOW.isoformat(),
    }
    asks(
        api,
        min_download_bytes_per_s=1.0,
        min_upload_bytes_per_s=1.0,
        download=api.add_blob(content),
        upload={"size_bytes": len(content), "sha256": probe_sha256(len(content)), "request": put},
    )
    assert node(probes=probes()).run() == ExitCode.DONE
    (said,) = api.bodies("checks")
    assert said["figures"]["download_bytes_per_s"] > 1.0
    assert said["figures"]["upload_bytes_per_s"] > 1.0
    assert api.uploads["probe"] == content


def test_no_link_is_measured_unasked(api: FakeNodeApi, node: NodeFactory) -> None:
    content = probe_bytes(MIN_PROBE_BYTES)
    asks(api, download=api.add_blob(content))
    node(probes=probes()).run()
    (said,) = api.bodies("checks")
    assert said["figures"]["download_bytes_per_s"] is None
