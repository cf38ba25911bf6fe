"""What a small run has to have at its end, and the moments around its change of phase."""

from collections import defaultdict
from pathlib import Path

from safetensors.numpy import load_file
from tests.system.pretrain.runs import SAMPLES, Seen

from giornata.pretrain.run_state.committed import COMMIT, FOLDER, name_of, newest, run_storage
from giornata.pretrain.run_state.proof import Proof, proof_of
from giornata.protocol.pretraining import PretrainConfig

FIRST_STEPS = -(-SAMPLES[0] // 16)
"""Of the first phase."""
CHANGE = name_of(FIRST_STEPS, 1)
"""The checkpoint between the phases."""


def check(config: PretrainConfig) -> Proof:
    """Everything that was to be trained was, once."""
    proof = proof_of(config)
    assert proof.finished
    assert proof.planned == sum(SAMPLES)
    assert (proof.repeated, proof.missed, proof.left_out) == (0, 0, 0)
    assert proof.unreadable > 0
    assert proof.trained_once + proof.unreadable == proof.planned
    return proof


def changed_half_way(seen: Seen) -> bool:
    """The first phase is trained; of the checkpoint that says so there are files, and no commit. Steps of the second
    phase may be done: the checkpoint is written meanwhile."""
    there = {Path(file).name for file in seen.files if file.startswith(CHANGE)}
    return bool(there) and COMMIT not in there


def changed(seen: Seen) -> bool:
    """That checkpoint is the newest whole one, so that the next start goes on from it. The first step of the second
    phase may be done before it is: the checkpoint is written meanwhile."""
    whole = {file.partition("/")[0] for file in seen.files if Path(file).name == COMMIT}
    return max(whole, default="") == CHANGE


def bytes_at_the_end(config: PretrainConfig) -> dict[str, list[bytes]]:
    """Every tensor of the newest checkpoint by its name, in as many pieces as there are shards of it; in a file they
    lie in any order."""
    run, pieces = run_storage(config), defaultdict[str, list[bytes]](list)
    found = newest(run)
    assert found is not None
    folder = Path(run.path()) / FOLDER / found.name
    for file in sorted(name for name in found.files if name.endswith(".safetensors")):
        for name, array in load_file(folder / file).items():
            pieces[name].append(array.tobytes())
    return dict(pieces)
