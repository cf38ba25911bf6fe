"""Bugs of grids, annotations and routing, for `mutants`."""

from tests.contract.model.mutant import Mutant, Mutation

AWAITED = "protocol/generation/awaited_annotations.py"
AWAIT = "control/pictures/await_annotations.py"

ORDER_KIND_MUTANTS = (
    Mutant(
        name="the last cell of a grid is lost",
        patches=(
            Mutation(
                file="protocol/generation/expand.py",
                old="        for combination in range(cell_count(parsed)):\n",
                new="        for combination in range(max(1, cell_count(parsed) - 1)):\n",
            ),
        ),
    ),
    Mutant(
        name="nodes that draw get annotations by models",
        patches=(
            Mutation(
                file=AWAITED,
                old="    return PREPROCESS_KIND if base_key in MODEL_BASES else LEASE_KIND\n",
                new="    return LEASE_KIND\n",
            ),
        ),
    ),
    Mutant(
        name="a picture is drawn before its annotation",
        patches=(
            Mutation(
                file=AWAITED,
                old="        if (key := key_of(annotation)) not in there:\n",
                new="        if (key := key_of(annotation)) not in there and False:\n",
            ),
        ),
    ),
    Mutant(
        name="a picture whose annotation was collected is drawn without it",
        patches=(
            Mutation(
                file=AWAIT,
                old="    if not controlled and not [row for row in pictures if CONTROLNETS in row.differs]:\n",
                new="    if pictures:\n",
            ),
        ),
    ),
    Mutant(
        name="an annotation that is kept frees no picture",
        patches=(
            Mutation(
                file=AWAIT,
                old="    if key.startswith(ANNOTATION_ENTRY):\n",
                new="    if False:\n",
            ),
        ),
    ),
    Mutant(
        name="a lease that annotates draws its pictures",
        patches=(
            Mutation(
                file="store/pictures/picture_results.py",
                old="    waiting = {PictureKey(row.order_id, row.number) for row in rows if row.awaits_annotation}\n",
                new="    waiting: set[PictureKey] = set()\n",
            ),
        ),
    ),
    Mutant(
        name="a node that says what it holds draws nothing else",
        patches=(
            Mutation(
                file="domain/generation/model_routing.py",
                old="    if _waited_s(waiting, now_ms) >= policy.delay_s:\n        return True\n",
                new="",
            ),
        ),
    ),
)
