"""The command in front of a run, which only hands signals on."""

import os
import signal
import subprocess
import sys
import threading

from giornata.cli.pretraining.pretrain_run import _awaited

STOPPED = 3
RUN = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit({STOPPED}))
print("ready", flush=True)
while True:  # signal.pause() would wait for ever for a signal that comes just before it
    time.sleep(0.02)
"""


def test_sigterm_is_handed_on_and_the_run_answers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.readline()
        teller = threading.Thread(target=_tell_when_somebody_listens, args=(before,))
        teller.start()
        assert _awaited(run) == STOPPED
        teller.join()
    assert signal.getsignal(signal.SIGTERM) is before


def _tell_when_somebody_listens(before: object) -> None:
    while signal.getsignal(signal.SIGTERM) is before:
        pass
    os.kill(os.getpid(), signal.SIGTERM)
