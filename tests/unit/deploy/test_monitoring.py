"""`deploy/monitoring`: every expression parses, and names only what a server exports."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import combinations
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.fixtures.fleets import ToyFleet, governed, with_fleets
from tests.fixtures.served import serving

from giornata.api.app import create_app
from giornata.api.server import HttpServer, listen
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.loops import Loops
from giornata.control.ports.fleet import InstanceState
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.domain.jobs.audits import AuditState
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import MachineState
from giornata.protocol.node.work import Claim, NodeInfo
from giornata.protocol.project.admin import NodeState
from giornata.store.schema import reallocations

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "monitoring" / "giornata.rules.yaml"
CASES = ROOT / "deploy" / "monitoring" / "giornata.rules.test.yaml"
DASHBOARD = ROOT / "deploy" / "monitoring" / "grafana-dashboard.json"
PAGE = ROOT / "docs" / "how-to" / "monitoring.md"
OF_PROMETHEUS = {"instance"}  # a label that each scraped server gets
VALUES: Mapping[tuple[str, str], type[StrEnum]] = {
    ("giornata_attempts_ended_total", "reason"): Reason,
    ("giornata_audits", "state"): AuditState,
    ("giornata_fleet_instances", "state"): InstanceState,
    ("giornata_jobs", "state"): JobState,
    ("giornata_machines", "state"): MachineState,
    ("giornata_nodes", "state"): NodeState,
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, frozenset[str]]:
    """The labels of each series that a server exports which has a fleet, a node, a job and loops."""
    with serving(tmp_path_factory.mktemp("served")) as served:
        fleet = governed(ToyFleet(), kinds=("x-count",), scaling=ScalingPolicy(max_nodes=1))
        ctx = with_fleets(served.ctx, {"gpu": fleet})
        job = served.client().submit({}, kind="x-count")
        for turn in (reconcile_fleet, scale_fleet, reconcile_fleet):
            turn(ctx, "gpu")
        with ctx.store.begin() as tx:
            row = {"fleet": "gpu", "instance_id": "i-0", "reason": "quarantined", "at_ms": ctx.clock.now_ms()}
            tx.connection.execute(reallocations.insert(), row)
        info = NodeInfo(node_id="node_12345678", machine_id="m-1", name="shed")
        body = Claim(request_id="request-1", node=info, kinds=("x-count",)).model_dump(mode="json")
        app = create_app(ctx, loops_status=Loops(ctx).status, disks={"data": tmp_path_factory.getbasetemp()})
        sock = listen("127.0.0.1", 0)
        server = HttpServer(app, sock, grace_s=5)
        server.start()
        try:
            url = f"http://127.0.0.1:{sock.getsockname()[1]}"
            key = {"Authorization": f"Bearer {served.keys.node}"}
            served.http.post(f"{url}/v1/node/claim", json=body, headers=key).raise_for_status()
            served.client().cancel(job.id)
            text = served.http.get(f"{url}/metrics").text
        finally:
            server.stop()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
        if not family.samples:
            labels.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, set())
    return {name: frozenset(found) for name, found in labels.items()}


def rules() -> list[dict]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict]:
    return list(json.loads(DASHBOARD.read_text())["panels"])


def expressions() -> list[str]:
    of_panels = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
    return [*(rule["expr"] for rule in rules()), *of_panels]


def parts_of(expression: str) -> list:
    """All parts of an expression. Raises ValueError for one that is no PromQL."""
    found: list = []
    promql_parser.walk(promql_parser.parse(expression), pre_visit=found.append)
    return found


def faults_of(expression: str, exported: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """What a parsed expression names that no server exports."""
    parts = parts_of(expression)
    selectors = [part.vector_selector if isinstance(part, promql_parser.MatrixSelector) else part for part in parts]
    selectors = [each for each in selectors if isinstance(each, promql_parser.VectorSelector)]
    known = OF_PROMETHEUS | {label for each in selectors for label in exported.get(each.name, ())}
    for each in selectors:
        if each.name not in exported:
            yield f"no metric {each.name}"
        for matcher in each.matchers.matchers:
            values = VALUES.get((each.name, matcher.name))
            if values is not None:
                for word in matcher.value.split("|"):
                    if not any(re.fullmatch(word, value) for value in values):
                        yield f"{each.name} has no {matcher.name} {word}"
            elif matcher.name not in exported.get(each.name, ()):
                yield f"{each.name} has no label {matcher.name}"
    for part in parts:
        modifier = getattr(part, "modifier", None)
        grouping = getattr(modifier, "matching", modifier)
        yield from (f"no label {name}" for name in getattr(grouping, "labels", ()) if name not in known)


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_parses_and_names_only_what_is_exported(
    expression: str, exported: Mapping[str, frozenset[str]]
) -> None:
    assert list(faults_of(expression, exported)) == []


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("sum(giornata_job)", "no metric giornata_job"),
        ('giornata_nodes{state="asleep"}', "giornata_nodes has no state asleep"),
        ('rate(giornata_steps_lost_total{job="a"}[5m])', "giornata_steps_lost_total has no label job"),
        ("max by (machine) (giornata_fleet_desired)", "no label machine"),
    ],
)
def test_expression_with_a_metric_that_is_not_exported_is_found(
    expression: str, fault: str, exported: Mapping[str, frozenset[str]]
) -> None:
    assert fault in list(faults_of(expression, exported))


def test_expression_that_is_no_promql_is_refused() -> None:
    with pytest.raises(ValueError, match="parenthesis"):
        parts_of("max(giornata_nodes")


def test_every_alert_has_what_prometheus_and_a_person_need() -> None:
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert promql_parser.parse_duration(rule["for"]).total_seconds() > 0
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"].endswith(".")


def test_the_page_says_of_every_alert_what_to_do() -> None:
    told = re.findall(r"^\| `(Giornata\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert told == [rule["alert"] for rule in rules()]


def test_panels_of_the_dashboard_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    for one, two in combinations([panel["gridPos"] for panel in panels()], 2):
        beside = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"]


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    cases = [each for test in yaml.safe_load(CASES.read_text())["tests"] for each in test["alert_rule_test"]]
    alerts = {rule["alert"] for rule in rules()}
    silent = {each["alertname"] for each in cases if not each["exp_alerts"]}
    assert {each["alertname"] for each in cases if each["exp_alerts"]} == silent == alerts
    assert yaml.safe_load(CASES.read_text())["rule_files"] == [RULES.name]


def promtool(*words: object) -> subprocess.CompletedProcess[str]:
    """What the real promtool says. Skips the test without one: Debian's package `prometheus` has it."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    return subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, check=False)


def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stderr


def test_promtool_finds_each_alert_firing_and_silent_where_the_cases_say() -> None:
    done = promtool("test", "rules", CASES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_a_rule_that_fires_at_another_value(tmp_path: Path) -> None:
    (tmp_path / RULES.name).write_text(RULES.read_text().replace("< 0.1\n", "< 0.01\n"))
    (tmp_path / CASES.name).write_text(CASES.read_text())
    done = promtool("test", "rules", tmp_path / CASES.name)
    assert done.returncode != 0
    assert "GiornataDiskLow" in done.stdout + done.stderr
