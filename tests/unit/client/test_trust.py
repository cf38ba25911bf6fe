"""Certificate authorities are read once in a process."""

import sys
from types import FrameType

from giornata.client import Client
from giornata.client.trust import trusted


def test_a_client_reads_no_certificates_when_another_has_read_them() -> None:
    trusted()
    calls: list[str] = []

    def note(_frame: FrameType, event: str, called: object) -> None:
        if event == "c_call":
            calls.append(getattr(called, "__name__", ""))

    sys.setprofile(note)
    try:
        Client("https://server.test", "gk_x").close()
    finally:
        sys.setprofile(None)
    assert calls
    assert "load_verify_locations" not in calls
