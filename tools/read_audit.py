"""Reads what `pip-audit --format json` says, and ends with 1 unless every pin was looked up and none has a hole.

pip-audit itself says "no known vulnerabilities found" when it could look nothing up, as behind a mirror.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any


def read_audit(report: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return lines for people, and whether all was looked up and nothing found."""
    skipped = [each["name"] for each in report["dependencies"] if "skip_reason" in each]
    looked_up = [each for each in report["dependencies"] if "skip_reason" not in each]
    holes = [
        f"{each['name']} {each['version']}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or 'no version'}"
        for each in looked_up
        for hole in each["vulns"]
    ]
    lines = [*holes, f"{len(looked_up)} pins were looked up; {len(holes)} known holes"]
    if skipped:
        lines.append(f"{len(skipped)} were not looked up, and nothing is known of them: {', '.join(skipped[:5])} ...")
    return lines, bool(looked_up) and not holes and not skipped


if __name__ == "__main__":
    said = sys.stdin.read()
    if not said.strip():
        sys.exit("pip-audit says nothing: nothing was audited")
    lines, is_good = read_audit(json.loads(said))
    print(*lines, sep="\n")
    sys.exit(0 if is_good else 1)
