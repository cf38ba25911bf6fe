"""Reports of held models: a server that reads them in order knows what the node holds, however few it got."""

import random

from giornata.protocol.node.held_models import MOST_CHANGES, HeldModels, HeldModelsLog, HeldTier, merged

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def test_first_report_is_whole_and_the_next_tells_changes_only():
    log = HeldModelsLog()
    log.replace(HeldTier.DISK, [A, B])
    whole = log.report(None)
    assert whole is not None and (whole.since, whole.added) == (None, {HeldTier.DISK: (A, B)})
    assert log.report(whole.version) is None
    log.replace(HeldTier.DISK, [B, C])
    change = log.report(whole.version)
    assert change is not None and change.since == whole.version
    assert (change.added, change.removed) == ({HeldTier.DISK: (C,)}, {HeldTier.DISK: (A,)})


def test_report_that_does_not_follow_is_not_merged():
    report = HeldModels(since=3, version=4, added={HeldTier.HOST: (A,)})
    assert merged({}, 2, report) is None
    assert merged({}, None, report) is None
    assert merged({}, 3, report) == {HeldTier.HOST: frozenset({A})}


def test_server_that_missed_too_many_changes_is_told_everything():
    log = HeldModelsLog()
    for number in range(MOST_CHANGES + 2):
        log.replace(HeldTier.HOST, [f"{number:064x}"])
    report = log.report(1)
    assert report is not None and report.since is None
    assert log.report(log.version + 7) == report  # a version of another process of the node


def test_reader_of_any_reports_in_order_knows_what_the_node_holds():
    draw = random.Random(7)
    names = [f"{number:064x}" for number in range(12)]
    log, known, version = HeldModelsLog(first_version=5), {}, None
    for _ in range(300):
        log.replace(draw.choice(list(HeldTier)), draw.sample(names, draw.randrange(len(names))))
        if draw.random() < 0.5 and (report := log.report(version)) is not None:
            again = HeldModels.model_validate_json(report.model_dump_json())
            found = merged(known, version, again)
            assert found is not None
            known, version = found, again.version
    report = log.report(version)
    known = known if report is None else merged(known, version, report)
    assert merged({}, None, log.report(None)) == known
