"""Which of many pictures look alike by their perceptual hashes, in SQL, within a limit of memory.

Pictures are asked in order of their *ranks*: the most pixels first, among equals the least key. One is left out when
its hash is within the distance of one that is kept. So every picture that goes is like one that stays, and none goes
for being like one that went.

Of equal hashes only the first asked is compared with others (`first`). Pairs within the distance are found by
giornata.pretrain.data.near_pairs. Then they are gone through by the rank of who is asked earlier: a range knows what
those before it made of its pictures, decides on its own, and says whom it strikes out of the ranges after it.
"""

from giornata.pretrain.data.near_pairs import find_pairs
from giornata.pretrain.data.sorted_tables import Range, SortedTables

_FIRST = """
INSERT INTO first SELECT hash, min(rank) FROM hashes WHERE hash >= $low AND hash < $high GROUP BY hash"""

_COPIES = """
INSERT INTO copies SELECT h.rank, f.rank
FROM hashes h JOIN (SELECT * FROM first WHERE hash >= $low AND hash < $high) f USING (hash)
WHERE h.hash >= $low AND h.hash < $high AND h.rank <> f.rank"""

# Those of the range whom an earlier one struck out. What is kept in memory is of the range's pairs, on the right:
# there may be many more that were struck out and stand in no further pair.
_STRUCK_HERE = """
CREATE OR REPLACE TEMP TABLE struck_here AS SELECT DISTINCT s.gone
FROM struck s JOIN (SELECT DISTINCT before FROM edges WHERE before >= $low AND before < $high) e ON s.gone = e.before
WHERE s.gone >= $low AND s.gone < $high"""

_ALIVE = """
CREATE OR REPLACE TEMP TABLE alive AS SELECT * FROM edges
WHERE before >= $low AND before < $high AND before NOT IN (FROM struck_here)"""

_OPEN = "CREATE OR REPLACE TEMP TABLE open AS SELECT * FROM alive WHERE after < $high"

# Whoever is asked before all of its open neighbours stays, and they go; a pair is open until one of its ends goes.
_ROUND = (
    """CREATE OR REPLACE TEMP TABLE gone AS
    SELECT DISTINCT after AS rank FROM open WHERE before NOT IN (SELECT after FROM open)""",
    "INSERT INTO goes FROM gone",
    """CREATE OR REPLACE TEMP TABLE open AS
    SELECT * FROM open WHERE before NOT IN (FROM gone) AND after NOT IN (FROM gone)""",
)

# In order, so that a range later reads little of it
_STRUCK = """
INSERT INTO struck SELECT after, before FROM alive WHERE before NOT IN (FROM goes) ORDER BY after"""

# Whoever is struck out is like the first that struck it; a copy is like the first of its hash, or what that is like.
_SAID = """
SELECT gone AS rank, NULL::BIGINT AS copy, kept FROM struck UNION ALL SELECT first, rank, NULL FROM copies"""

_VERDICTS = """
INSERT INTO verdicts WITH goes AS (
    SELECT rank, min(kept) AS kept FROM said WHERE rank >= $low AND rank < $high AND copy IS NULL GROUP BY rank
)
SELECT rank, kept FROM goes UNION ALL
SELECT c.copy, coalesce(g.kept, c.rank)
FROM (SELECT * FROM said WHERE rank >= $low AND rank < $high AND copy IS NOT NULL) c LEFT JOIN goes g USING (rank)"""

# Many may be like one: what is kept in memory is each of these once.
_KEPT_NUMBERS = """
CREATE OR REPLACE TEMP TABLE numbers AS SELECT s.rowid AS rank, s.number
FROM standing s JOIN (SELECT DISTINCT kept FROM by_kept WHERE kept >= $low AND kept < $high) k ON s.rowid = k.kept
WHERE s.rowid >= $low AND s.rowid < $high"""

_NAMED = """
INSERT INTO named SELECT v.rank, n.number FROM by_kept v JOIN numbers n ON v.kept = n.rank
WHERE v.kept >= $low AND v.kept < $high"""

_NEAR = """
INSERT INTO near SELECT s.number, v.kept
FROM standing s JOIN (SELECT * FROM by_rank WHERE rank >= $low AND rank < $high) v ON s.rowid = v.rank
WHERE s.rowid >= $low AND s.rowid < $high"""


def find_alike(tables: SortedTables, distance: int) -> None:
    """From `sound` (number, key, pixels, hash) create `near` (number, kept): what looks like another, and like which
    of those that stay."""
    tables.sort("standing", "SELECT number, hash FROM sound", "pixels DESC, key")
    _first_of_each_hash(tables)
    tables.run("CREATE TABLE pairs (before BIGINT, after BIGINT)")
    find_pairs(tables, distance)
    tables.drop("first")
    _choose(tables)
    _say_in_numbers(tables)


def _first_of_each_hash(tables: SortedTables) -> None:
    tables.sort("hashes", "SELECT hash, rowid AS rank FROM standing", "hash")
    tables.run("CREATE TABLE first (hash UBIGINT, rank BIGINT)")
    tables.run("CREATE TABLE copies (rank BIGINT, first BIGINT)")
    for part in tables.ranges("hashes", "hash"):
        tables.run(_FIRST, part)
        tables.run(_COPIES, part)
    tables.drop("hashes")


def _choose(tables: SortedTables) -> None:
    """From `pairs` make `struck` (gone, kept): every pair of one that stays with one that goes."""
    tables.sort("edges", "FROM pairs", "before")
    tables.drop("pairs")
    tables.run("CREATE TABLE struck (gone BIGINT, kept BIGINT)")
    for part in tables.ranges("edges", "before"):
        _choose_in(tables, part)
    tables.drop("edges", "struck_here", "alive", "open", "gone", "goes")


def _choose_in(tables: SortedTables, part: Range) -> None:
    """Round by round: as many as the longest chain of pictures of which each is asked after the one before."""
    tables.run(_STRUCK_HERE, part)
    tables.run(_ALIVE, part)
    tables.run(_OPEN, {"high": part["high"]})
    tables.run("CREATE OR REPLACE TEMP TABLE goes (rank BIGINT)")
    while tables.count("open"):
        for statement in _ROUND:
            tables.run(statement)
    tables.run(_STRUCK)


def _say_in_numbers(tables: SortedTables) -> None:
    tables.sort("said", _SAID, "rank")
    tables.drop("struck", "copies")
    tables.run("CREATE TABLE verdicts (rank BIGINT, kept BIGINT)")
    for part in tables.ranges("said", "rank"):
        tables.run(_VERDICTS, part)
    tables.sort("by_kept", "FROM verdicts", "kept")
    tables.drop("said", "verdicts")
    tables.run("CREATE TABLE named (rank BIGINT, kept BIGINT)")
    for part in tables.ranges("by_kept", "kept"):
        tables.run(_KEPT_NUMBERS, part)
        tables.run(_NAMED, part)
    tables.sort("by_rank", "FROM named", "rank")
    tables.drop("by_kept", "named", "numbers")
    tables.run("CREATE TABLE near (number BIGINT, kept BIGINT)")
    for part in tables.ranges("by_rank", "rank"):
        tables.run(_NEAR, part)
    tables.drop("by_rank", "standing")
