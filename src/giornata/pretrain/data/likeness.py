"""Which of many pictures look alike by their perceptual hashes, in SQL, so that they need not fit into memory.

Pictures are asked in order: the most pixels first, among equals the least key. One is left out when its hash is
within the distance of one that is kept. So every picture that goes is like one that stays, and none goes for being
like one that went.

The hashes are cut into distance + 2 bands. Two that differ in at most `distance` bits differ in at most as many bands
and so agree in two: only hashes that share two bands are compared, and every near pair is found.
"""

from itertools import combinations

import duckdb

from giornata.pretrain.data.filters import Refusal
from giornata.pretrain.data.perceptual import bands

# Of each hash the picture that is asked first: no other of its hash is ever kept.
_FIRST = """
CREATE TABLE first AS SELECT hash, found.number AS number, found.key AS key, -found.less AS pixels
FROM (SELECT hash, min({'less': -pixels, 'key': key, 'number': number}) AS found FROM sound GROUP BY hash)"""

_PAIRS = """
INSERT INTO pairs SELECT a.hash, b.hash FROM first a JOIN first b ON (a.hash & $mask) = (b.hash & $mask)
WHERE a.hash < b.hash AND bit_count(xor(a.hash, b.hash)) <= $distance"""

_RANKED = """
CREATE TABLE ranked AS SELECT hash, number, row_number() OVER (ORDER BY pixels DESC, key) AS rank
FROM first WHERE hash IN (SELECT one FROM pairs UNION SELECT other FROM pairs)"""

# `before` is asked first.
_EDGES = """
CREATE TABLE edges AS SELECT DISTINCT least(a.rank, b.rank) AS before, greatest(a.rank, b.rank) AS after
FROM pairs JOIN ranked a ON a.hash = one JOIN ranked b ON b.hash = other"""

# Whoever is asked before all of its open neighbours stays, and they go; an edge is open until one of its ends goes.
_ROUND = (
    """CREATE OR REPLACE TABLE gone AS
    SELECT DISTINCT after AS rank FROM open WHERE before NOT IN (SELECT after FROM open)""",
    "INSERT INTO goes FROM gone",
    """CREATE OR REPLACE TABLE open AS
    SELECT * FROM open WHERE before NOT IN (FROM gone) AND after NOT IN (FROM gone)""",
)

# For each hash that goes the first of those that stay and are like it.
_LIKE = """
CREATE TABLE alike AS SELECT r.hash, k.number AS kept
FROM (SELECT after, min(before) AS before FROM edges
      WHERE after IN (SELECT rank FROM goes) AND before NOT IN (SELECT rank FROM goes) GROUP BY after) e
JOIN ranked r ON r.rank = e.after JOIN ranked k ON k.rank = e.before"""

_REFUSED = """
INSERT INTO refused SELECT s.number, $reason, coalesce(a.kept, f.number)
FROM sound s JOIN first f USING (hash) LEFT JOIN alike a USING (hash)
WHERE a.kept IS NOT NULL OR s.number <> f.number"""

_GONE = "DELETE FROM sound WHERE number IN (SELECT number FROM refused WHERE reason = $reason)"


_NOT_NEEDED = ("first", "pairs", "ranked", "edges", "open", "gone", "goes", "alike")


def find_alike(tables: duckdb.DuckDBPyConnection, distance: int) -> None:
    """Move what looks like another from `sound` (number, key, pixels, hash) to `refused` (number, reason, kept)."""
    tables.execute(_FIRST)
    tables.execute("CREATE TABLE pairs (one UBIGINT, other UBIGINT)")
    for one, other in combinations(bands(distance + 2), 2):
        tables.execute(_PAIRS, {"mask": int(one | other), "distance": distance})
    tables.execute(_RANKED)
    tables.execute(_EDGES)
    _choose(tables)
    tables.execute(_LIKE)
    reason = {"reason": str(Refusal.NEAR_DUPLICATE)}
    tables.execute(_REFUSED, reason)
    tables.execute(_GONE, reason)
    for table in _NOT_NEEDED:
        tables.execute(f"DROP TABLE IF EXISTS {table}")
    tables.execute("CHECKPOINT")


def _choose(tables: duckdb.DuckDBPyConnection) -> None:
    """Round by round: as many as the longest chain of pictures of which each is asked after the one before."""
    tables.execute("CREATE TABLE open AS FROM edges")
    tables.execute("CREATE TABLE goes (rank BIGINT)")
    while tables.execute("SELECT count(*) FROM open").fetchall()[0][0]:
        for statement in _ROUND:
            tables.execute(statement)
