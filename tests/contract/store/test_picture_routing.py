"""Routing of pictures to nodes that hold their models: reports, hints and leases through the real store."""

import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.notifier import KeptRuns
from tests.fixtures.picture_rig import PictureRig, generate_spec
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import ROOT
from tests.fixtures.webhooks import webhook, with_webhooks

from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.memory.process_cache import ProcessCache
from giornata.control.pictures.model_coverage import model_coverage
from giornata.control.ports.model_registry import ModelRecord
from giornata.control.storage.collect import collect
from giornata.domain.errors import NotFound
from giornata.domain.generation.model_routing import BaseChoice, RoutingPolicy, Tier
from giornata.protocol.events import OperatorEvent
from giornata.protocol.node.held_models import HeldModels, HeldTier
from giornata.protocol.node.work import ClaimReply
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.simulate.affinity.routed_fleet import ModelNode, RoutedFleet
from giornata.simulate.affinity.setting import AffinitySetting
from giornata.store import schema

POLICY = RoutingPolicy()
OWNER = Caller(project_id=ROOT_PROJECT, scopes=Scope.MEMBER.reach, key_id="key_owner")


@pytest.fixture
def picture_rig(rig: StoreRig) -> PictureRig:
    return PictureRig(rig)


class ReportingNode:
    """A node that reports its files, as `giornata.agent.transfer.model_reports` does."""

    def __init__(self, picture_rig: PictureRig, number: int, *files: str, vram_bytes: int | None = None) -> None:
        self.picture_rig, self.files = picture_rig, files
        self.node = picture_rig.rig.node(number).model_copy(update={"vram_bytes": vram_bytes})
        self.version, self.told, self.fetching = 1, None, None
        self.gpu: tuple[str, ...] = ()

    def has(self, *files: str) -> None:
        self.files, self.version, self.told, self.fetching = files, self.version + 1, None, None

    def claim(self, **more: Any) -> ClaimReply:
        whole = HeldModels(version=self.version, added={HeldTier.DISK: self.files} if self.files else {})
        said = {"held": None if self.told == self.version else whole, "held_version": self.version}
        reply = self.picture_rig.claim_as(self.node, held_models=self.gpu, fetching=self.fetching, **(said | more))
        self.told = reply.held_version
        if reply.prefetch is not None:
            self.fetching = reply.prefetch.base_key
        if reply.picture_lease is not None:
            self.gpu = (reply.picture_lease.base_key,)
        return reply


def stored_model(picture_rig: PictureRig, content: bytes) -> str:
    return str(picture_rig.rig.add_blob(content).sha256)


def order_of(picture_rig: PictureRig, sha256: str, pictures: int = 1, **columns: Any) -> str:
    spec = generate_spec(pictures) | {"model": {"name": f"model {sha256[:4]}", "sha256": sha256}}
    return picture_rig.order(spec=spec, **columns)


def model_record(name: str, sha256: str) -> ModelRecord:
    return ModelRecord(
        project_id=ROOT_PROJECT,
        name=name,
        sha256=sha256,
        kind="base",
        family="sdxl",
        size_bytes=7,
        source="blob",
        reference="",
        pinned=False,
        shared=False,
        created_at_ms=1,
        used_at_ms=1,
    )


def in_new_process(picture_rig: PictureRig) -> PictureRig:
    other = PictureRig(picture_rig.rig)
    other.ctx = replace(picture_rig.ctx, memory=ProcessCache())
    other._claims = 1000
    return other


def test_base_that_nobody_holds_is_named_for_fetching_and_leased_when_it_has_come(picture_rig: PictureRig) -> None:
    file = stored_model(picture_rig, b"weights")
    order_id = order_of(picture_rig, file)
    node = ReportingNode(picture_rig, 1)
    first = node.claim()
    assert (first.picture_lease, first.reason) == (None, "models-elsewhere")
    assert first.prefetch is not None
    assert [each.sha256 for each in first.prefetch.downloads] == [file]
    meanwhile = node.claim()
    assert (meanwhile.prefetch, meanwhile.picture_lease) == (None, None)
    node.has(file)
    lease = node.claim().picture_lease
    assert lease is not None
    assert lease.pictures[0].order_id == order_id


def test_nodes_that_hold_a_file_which_was_damaged_elsewhere_are_told_once(picture_rig: PictureRig) -> None:
    file, other = stored_model(picture_rig, b"weights"), stored_model(picture_rig, b"others")
    webhook(with_webhooks(picture_rig.ctx, KeptRuns()), ROOT, OperatorEvent.MODEL_DAMAGED)
    damaged, holder, stranger = (
        ReportingNode(picture_rig, n, *files) for n, files in enumerate(((file, other), (file,), (other,)))
    )
    for node in (damaged, holder, stranger):
        assert node.claim().verify == ()
    for _ in range(2):  # the first reply may have been lost
        assert damaged.claim(damaged=(file,)).verify == ()
    assert [node.claim().verify for node in (damaged, stranger, holder, holder)] == [(), (), (file,), ()]
    [told] = picture_rig.rig.rows(schema.webhook_deliveries)
    assert json.loads(told["body"])["data"] == {
        "machine_id": damaged.node.machine_id,
        "node_id": damaged.node.node_id,
        "sha256": file,
    }
    assert holder.claim(damaged=(file,)).verify == ()
    assert len(picture_rig.rig.rows(schema.webhook_deliveries)) == 2


def test_loras_and_controlnets_of_the_waiting_order_are_named_behind_its_base(picture_rig: PictureRig) -> None:
    base, lora, held, net, edges = (stored_model(picture_rig, each.encode()) for each in "blhne")
    named = {"loras": [{"name": "l", "sha256": lora}, {"name": "h", "sha256": held}]}
    spec = generate_spec(1) | {"model": {"name": "model", "sha256": base}} | named
    spec["pictures"] = [{"prompt": "a cat", "controlnets": [{"name": "n", "sha256": net, "image": edges}]}]
    picture_rig.order(spec=spec)
    hint = ReportingNode(picture_rig, 1, held).claim().prefetch
    assert hint is not None
    assert [each.sha256 for each in hint.downloads] == [base, lora, net]


def test_base_is_fetched_by_one_node_of_the_fleet_also_when_another_server_answers(picture_rig: PictureRig) -> None:
    order_of(picture_rig, stored_model(picture_rig, b"weights"))
    assert ReportingNode(picture_rig, 1).claim().prefetch is not None
    assert ReportingNode(picture_rig, 2).claim().prefetch is None
    assert ReportingNode(in_new_process(picture_rig), 3).claim().prefetch is None


def test_work_for_more_nodes_is_fetched_by_more_nodes(picture_rig: PictureRig) -> None:
    file = stored_model(picture_rig, b"weights")
    spec = generate_spec(300, side_px=1024, steps=30) | {"model": {"name": "base", "sha256": file}}
    picture_rig.order(spec=spec)
    hints = [ReportingNode(picture_rig, number).claim().prefetch for number in range(1, 4)]
    assert all(hint is not None for hint in hints)


def test_base_that_another_node_has_on_its_gpu_is_loaded_after_the_delay(picture_rig: PictureRig) -> None:
    file = stored_model(picture_rig, b"weights")
    order_of(picture_rig, file, pictures=2)
    holder, other = ReportingNode(picture_rig, 1, file), ReportingNode(picture_rig, 2, file)
    assert holder.claim(most=1).picture_lease is not None
    assert other.claim(most=1).reason == "models-elsewhere"
    picture_rig.rig.clock.advance_s(POLICY.delay_s)
    holder.claim(most=0)
    assert other.claim(most=1).picture_lease is not None


def test_holder_that_has_gone_silent_delays_nobody(picture_rig: PictureRig) -> None:
    file = stored_model(picture_rig, b"weights")
    order_of(picture_rig, file)
    assert ReportingNode(picture_rig, 1, file).claim().picture_lease is not None
    picture_rig.rig.clock.advance_s(picture_rig.ctx.policy.node_gone_after_s + 1)
    order_of(picture_rig, file)
    assert ReportingNode(picture_rig, 2, file).claim().picture_lease is not None


def test_report_that_does_not_follow_on_what_is_known_is_asked_for_again(picture_rig: PictureRig) -> None:
    file = stored_model(picture_rig, b"weights")
    order_of(picture_rig, file)
    change = HeldModels(since=6, version=7, added={HeldTier.DISK: (file,)})
    reply = picture_rig.claim(1, held=change, held_version=7)
    assert (reply.held_version, reply.picture_lease) == (None, None)
    whole = HeldModels(version=7, added={HeldTier.DISK: (file,)})
    assert picture_rig.claim(1, held=whole, held_version=7).held_version == 7


def test_files_of_a_node_are_known_to_a_server_that_it_never_asked(picture_rig: PictureRig) -> None:
    file = stored_model(picture_rig, b"weights")
    node = ReportingNode(picture_rig, 1, file)
    node.claim()
    order_of(picture_rig, file)
    node.picture_rig = in_new_process(picture_rig)
    assert node.claim().picture_lease is not None


def test_base_that_could_not_be_fetched_ahead_is_leased_so_that_the_reason_is_told(picture_rig: PictureRig) -> None:
    order_of(picture_rig, stored_model(picture_rig, b"weights"))
    node = ReportingNode(picture_rig, 1)
    assert node.claim().prefetch is not None
    node.fetching = None
    reply = node.claim()
    assert (reply.prefetch, reply.picture_lease is not None) == (None, True)


def test_base_whose_bytes_are_nowhere_is_no_hint_and_is_leased(picture_rig: PictureRig) -> None:
    order_of(picture_rig, stored_model(picture_rig, b"weights"))
    with picture_rig.ctx.store.begin() as tx:
        tx.connection.execute(sa.update(schema.blobs).values(lost_at_ms=1))
    node = ReportingNode(picture_rig, 1)
    assert node.claim().prefetch is None
    assert node.claim().picture_lease is not None


def test_node_that_may_not_have_the_first_bases_gets_the_next_one(picture_rig: PictureRig) -> None:
    for number in range(10):
        picture_rig.order(spec=generate_spec(1, model=f"large-{number}"), min_vram_bytes=10**11)
    small = picture_rig.order(spec=generate_spec(1, model="small"))
    node = picture_rig.rig.node(1).model_copy(update={"vram_bytes": 10**10})
    reply = picture_rig.claim_as(node)
    assert reply.picture_lease is not None
    assert reply.picture_lease.pictures[0].order_id == small


def test_node_without_reports_waits_for_no_other(picture_rig: PictureRig) -> None:
    order_of(picture_rig, stored_model(picture_rig, b"weights"), pictures=2)
    assert picture_rig.claim(1, most=1).picture_lease is not None
    reply = picture_rig.claim(2, most=1)
    assert (reply.picture_lease is not None, reply.held_version, reply.prefetch) == (True, None, None)


def test_held_models_are_written_only_when_they_change(picture_rig: PictureRig) -> None:
    node = ReportingNode(picture_rig, 1, "a" * 64)
    node.claim()
    node.claim()
    (row,) = picture_rig.rig.rows(schema.node_models)
    assert (row["version"], row["held"], row["fetching"]) == (1, {"disk": ["a" * 64]}, None)


def test_order_says_which_model_no_node_has_and_on_how_many_it_is_arriving(picture_rig: PictureRig) -> None:
    file = stored_model(picture_rig, b"weights")
    node = ReportingNode(picture_rig, 1)
    assert node.claim().prefetch is None
    order_id = order_of(picture_rig, file)
    because = get_job(picture_rig.ctx, OWNER, order_id).waiting_because
    assert because == f"no node has model {file[:4]}, and none fetches it yet"
    assert node.claim().prefetch is not None
    because = get_job(picture_rig.ctx, OWNER, order_id).waiting_because
    assert because == f"no node has model {file[:4]}; it is arriving on 1 node"
    node.claim(fetching_left_s=200.0)
    because = get_job(picture_rig.ctx, OWNER, order_id).waiting_because
    assert because == f"no node has model {file[:4]}; it is arriving on 1 node, expected in 3 min"
    node.has(file)
    assert node.claim(joint_key="0" * 32).picture_lease is None
    assert "no node has" not in str(get_job(picture_rig.ctx, OWNER, order_id).waiting_because)


def test_coverage_counts_each_node_that_serves_the_project_in_its_fastest_tier(picture_rig: PictureRig) -> None:
    rig, file = picture_rig.rig, stored_model(picture_rig, b"weights")
    order_of(picture_rig, file)
    rig.add_project("ann")
    with picture_rig.ctx.store.begin() as tx:
        tx.models.add(model_record("base", file))
    own = Caller(project_id="ann", scopes=Scope.NODE.reach, key_id="key_ann")
    ReportingNode(picture_rig, 1, file).claim()
    ReportingNode(picture_rig, 2, file).claim()
    ReportingNode(picture_rig, 3).claim()
    ReportingNode(picture_rig, 4, file).claim(caller=own)
    found = model_coverage(picture_rig.ctx, OWNER, "base")
    assert (found.nodes, found.gpu, found.host, found.disk, found.fetching) == (3, 1, 0, 1, 0)
    with pytest.raises(NotFound):
        model_coverage(picture_rig.ctx, OWNER, "nothing")


def test_machine_of_another_project_does_not_keep_a_base_from_being_fetched(picture_rig: PictureRig) -> None:
    picture_rig.rig.add_project("ann")
    file = stored_model(picture_rig, b"weights")
    ReportingNode(picture_rig, 1, file).claim(
        caller=Caller(project_id="ann", scopes=Scope.NODE.reach, key_id="key_ann")
    )
    order_of(picture_rig, file)
    assert ReportingNode(picture_rig, 2).claim().prefetch is not None


def test_node_that_is_too_small_for_a_picture_fetches_nothing_and_is_no_holder(picture_rig: PictureRig) -> None:
    file = stored_model(picture_rig, b"weights")
    order_of(picture_rig, file, min_vram_bytes=10**11)
    small, large = ReportingNode(picture_rig, 1, vram_bytes=10**10), ReportingNode(picture_rig, 2)
    assert small.claim().prefetch is None
    small.has(file)
    assert small.claim().picture_lease is None
    assert large.claim().prefetch is not None


def test_base_whose_holder_is_busy_is_fetched_by_another_in_the_end(picture_rig: PictureRig) -> None:
    file = stored_model(picture_rig, b"weights")
    busy, other = ReportingNode(picture_rig, 1, file), ReportingNode(picture_rig, 2)
    busy.claim()
    order_of(picture_rig, file)
    assert other.claim().prefetch is None
    picture_rig.rig.clock.advance_s(POLICY.patience_s)
    busy.claim(kinds=("generate",), joint_key="0" * 32)
    assert other.claim().prefetch is not None


def test_held_models_of_a_silent_node_are_deleted_after_a_day(picture_rig: PictureRig) -> None:
    ReportingNode(picture_rig, 1, "a" * 64).claim()
    picture_rig.rig.clock.advance_s(picture_rig.ctx.policy.garbage_after_s + 1)
    assert collect(picture_rig.ctx).node_models == 1
    assert picture_rig.rig.rows(schema.node_models) == []


def test_order_whose_spec_tells_no_base_keeps_no_other_from_being_drawn(picture_rig: PictureRig) -> None:
    broken = picture_rig.order(min_vram_bytes=10**11)
    with picture_rig.ctx.store.begin() as tx:
        tx.connection.execute(sa.update(schema.jobs).where(schema.jobs.c.id == broken).values(spec={}))
    order_of(picture_rig, stored_model(picture_rig, b"weights"))
    assert ReportingNode(picture_rig, 1, vram_bytes=10**10).claim().prefetch is not None


class StoreRoutedFleet(RoutedFleet):
    """The simulator's fleet, with orders and claims of the real store in place of its queue and its choices."""

    def __init__(self, setting: AffinitySetting, picture_rig: PictureRig, *, seed: int) -> None:
        super().__init__(setting, POLICY, seed=seed)
        self._studio = picture_rig
        self._start_ms = picture_rig.rig.clock.now_ms()
        self._names: dict[str, str] = {}

    def arrived(self, base_key: str) -> None:
        super().arrived(base_key)
        self._set_clock()
        order_id = self._studio.order(spec=generate_spec(1, model=base_key, side_px=1024, steps=48))
        (row,) = self._studio.rig.rows(schema.pictures, order_id=order_id)
        self._names[row["base_key"]] = base_key

    def choice(self, node: ModelNode, request_id: str) -> BaseChoice | None:
        self._set_clock()
        keys = {name: key for key, name in self._names.items()}
        reply = self._studio.claim_as(
            self._studio.rig.node(node.number + 1, places=64),  # nothing that it leases ends here
            most=1,
            request_id=request_id,
            held_models=tuple(keys[name] for name in node.gpu),
            held_version=0,
            held=HeldModels(version=0),
        )
        if reply.picture_lease is None:
            return None
        base_key = self._names[reply.picture_lease.base_key]
        return BaseChoice(base_key=base_key, tier=Tier.GPU if base_key in node.gpu else Tier.DISK)

    def _set_clock(self) -> None:
        clock = self._studio.rig.clock
        clock.advance_s((self._start_ms + self.now_ms - clock.now_ms()) / 1000)


def test_claims_of_the_store_load_what_the_simulator_says(ctx: Context, rig: StoreRig) -> None:
    setting = AffinitySetting(nodes=4, bases=12, load=0.7, gpu_bases=1, warm_up_s=0.0, measured_s=160.0)
    simulated = RoutedFleet(setting, POLICY, seed=2)
    simulated.play()
    picture_rig = PictureRig(rig)
    picture_rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, routing_age_s=0.0, node_gone_after_s=1e6))
    real = StoreRoutedFleet(setting, picture_rig, seed=2)
    real.play()
    assert len(simulated.served) > 30
    assert 0 < sum(each.loaded for each in simulated.served) < len(simulated.served)
    assert real.served == simulated.served
