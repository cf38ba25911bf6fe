"""Make all checks, and put their findings in order of harm."""

from collections.abc import Callable, Iterator

from giornata.cli.maintenance.doctor.database_checks import (
    check_audit_log,
    check_database,
    check_database_clock,
    check_fleets,
    check_outbox,
    check_replay_audits,
    check_versions,
)
from giornata.cli.maintenance.doctor.examined import ExaminedInstallation
from giornata.cli.maintenance.doctor.findings import Diagnosis, DoctorFinding, Harm, NotChecked
from giornata.cli.maintenance.doctor.server_checks import (
    check_certificates,
    check_loops,
    check_open_files,
    check_public_url,
    check_server_clocks,
)
from giornata.cli.maintenance.doctor.storage_checks import (
    check_disks,
    check_folders,
    check_storage,
    check_storage_clock,
)

Check = Callable[[ExaminedInstallation], Iterator[DoctorFinding]]

# Of findings of equal harm the earlier one comes first.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("database", check_database),
    ("clock of the database", check_database_clock),
    ("clocks of servers", check_server_clocks),
    ("clock of the storage", check_storage_clock),
    ("audit-log", check_audit_log),
    ("disk", check_disks),
    ("open-files", check_open_files),
    ("loops", check_loops),
    ("outbox", check_outbox),
    ("storage", check_storage),
    ("folders", check_folders),
    ("versions", check_versions),
    ("certificates", check_certificates),
    ("fleets", check_fleets),
    ("replay-audits", check_replay_audits),
    ("public-url", check_public_url),
)


def examine(examined: ExaminedInstallation) -> Diagnosis:
    """Make every check that can be made; return the findings in order of harm."""
    findings: list[DoctorFinding] = []
    checked, not_checked = [], {}
    for name, check in CHECKS:
        try:
            findings += check(examined)
        except NotChecked as error:
            not_checked[name] = str(error)
        else:
            checked.append(name)
    order = list(Harm)
    return Diagnosis(
        findings=sorted(findings, key=lambda each: order.index(each.harm)),
        checked=checked,
        not_checked=not_checked,
    )
