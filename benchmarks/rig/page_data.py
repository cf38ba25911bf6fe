"""What the pages of the dashboard show, by the hundred thousand, inserted by a few statements."""

import time

import sqlalchemy as sa

from benchmarks.rig.page_examples import add_examples

DAY_MS = 86_400_000
APART_MS = 3 * 3_600_000
"""Between two jobs. 400 of them fill more than a month, so that no day and no month has more of many more."""
NODES = 300
CONNECTED = 60
"""Nodes that are heard of, more than a page shows: the page of a small fleet is as long as that of a large one."""
QUEUED = 40
# The latest jobs wait or run; the others ended. Each that began has an attempt, a bill and an event.
JOBS = """
INSERT INTO jobs (id, project_id, kind, name, state, spec, priority, labels, attempt_count, attempt_id, faults,
                  result, total_steps, step, created_at_ms, started_at_ms, ended_at_ms)
SELECT 'job_many' || n, '{project}', CASE WHEN n % 7 = 0 THEN 'generate' ELSE 'train' END, 'many ' || n,
       CASE WHEN n <= {queued} THEN 'queued' WHEN n <= 2 * {queued} THEN 'running' WHEN n % 9 = 0 THEN 'failed'
            ELSE 'succeeded' END,
       CASE WHEN n % 7 = 0 THEN '{{"model": {{"name": "some/model"}}, "prompts": ["a house by the sea"],
       "loras": [{{"name": "style"}}]}}' ELSE '{{"pretrained_model_name_or_path": "some/model", "rank": 8}}'
       END::json, 0, '{{}}',
       CASE WHEN n <= {queued} THEN 0 ELSE 1 END, CASE WHEN n <= {queued} THEN NULL ELSE 'att_many' || n END,
       '[]', '{{}}', 600, 300, {now} - {apart} * n,
       CASE WHEN n <= {queued} THEN NULL ELSE {now} - {apart} * n + 1000 END,
       CASE WHEN n <= 2 * {queued} THEN NULL ELSE {now} - {apart} * n + 50000 END
FROM generate_series({first}::bigint, {last}) n
"""
ATTEMPTS = """
INSERT INTO attempts (id, job_id, number, node_id, machine_id, node_name, request_id, price_micro_usd_per_hour,
                      started_at_ms, renewed_at_ms, lease_expires_at_ms, ended_at_ms, reason)
SELECT 'att_many' || n, 'job_many' || n, 1, 'node_many' || (n % {nodes}), 'machine-' || (n % {nodes}), 'n', 'r' || n,
       360000,
       started_at_ms, started_at_ms, {now} + {day}, ended_at_ms, CASE WHEN ended_at_ms IS NULL THEN NULL
       WHEN state = 'failed' THEN 'crashed' ELSE 'succeeded' END
FROM generate_series({first}::bigint, {last}) n JOIN jobs ON id = 'job_many' || n WHERE n > {queued}
"""
LEDGER = """
INSERT INTO ledger (attempt_id, seq, project_id, job_id, from_ms, to_ms, price_micro_usd_per_hour, amount_micro_usd)
SELECT a.id, 0, '{project}', job_id, a.started_at_ms, coalesce(a.ended_at_ms, {now}), 360000, 4900
FROM generate_series({first}::bigint, {last}) n JOIN attempts a ON a.id = 'att_many' || n
"""
EVENTS = """
INSERT INTO events (project_id, job_id, type, data, at_ms)
SELECT '{project}', 'job_many' || n, 'job.submitted', '{{}}', {now} - {apart} * n
FROM generate_series({first}::bigint, {last}) n
"""
ORDERS = """
INSERT INTO picture_orders (order_id, project_id, priority, pictures, ended, told, told_at_ms, ends_turn, is_open)
SELECT 'job_many' || n, '{project}', 0, {pictures}, {pictures}, {pictures}, 0, n, false
FROM generate_series({first}::bigint, {last}) n WHERE n % 7 = 0
"""
# One picture of ten has a word of its own, and every second order such pictures: a search finds few in much.
PICTURES = """
INSERT INTO pictures (order_id, number, project_id, state, batch_key, base_key, turn, priority, seed, differs,
                      pixel_steps, together, lease, sha256, size_bytes, place)
SELECT 'job_many' || n, m, '{project}', 'succeeded', 'b', 'b', n, 0, n,
       json_build_object('prompt', CASE WHEN n % 14 = 0 AND m % 10 = 0 THEN 'a harbor by the sea'
                                        ELSE 'a house by the sea' END),
       1, 8, 'att_many' || n, repeat(md5(n || ' ' || m), 2), 300000, m + 1
FROM generate_series({first}::bigint, {last}) n, generate_series(0, {pictures} - 1) m WHERE n % 7 = 0
"""
TERMS = """
INSERT INTO order_terms (order_id, term, project_id, ordered_at_ms)
SELECT 'job_many' || n, term, '{project}', {now} - {apart} * n
FROM generate_series({first}::bigint, {last}) n,
     unnest(ARRAY['', 'model:some/model', 'lora:style', 'house', 'by', 'the', 'sea', 'harbor']) term
WHERE n % 7 = 0 AND (term <> 'harbor' OR n % 14 = 0)
"""
TAGS = """
INSERT INTO picture_tags (order_id, number, tag, project_id, ordered_at_ms)
SELECT 'job_many' || n, m, tag, '{project}', {now} - {apart} * n
FROM generate_series({first}::bigint, {last}) n, generate_series(0, {pictures} - 1) m, unnest(ARRAY['*', 'best']) tag
WHERE n % 7 = 0 AND m % 10 = 0 AND (tag = '*' OR m % 20 = 0)
"""
FLEET = """
INSERT INTO nodes (id, project_id, machine_id, name, fleet, kinds, held_models, versions, first_seen_at_ms,
                   last_seen_at_ms)
SELECT 'node_many' || n, 'default', 'machine-' || n, 'many-' || n, 'local', '[]', '[]', '{{}}', {now} - {day},
       CASE WHEN n <= {connected} THEN {now} ELSE {now} - {day} END
FROM generate_series(1, {nodes}) n WHERE {first} = 1
"""
MACHINES = """
INSERT INTO machines (machine_id, kind, state, reason, since_ms, scored_at_ms, quota, by_hand)
SELECT 'machine-' || n, 'train', CASE WHEN n % 10 = 0 THEN 'quarantined' ELSE 'ok' END, '', {now}, {now}, 1,
       n % 10 = 0
FROM generate_series(1, {nodes}) n WHERE {first} = 1
ON CONFLICT DO NOTHING
"""
STATEMENTS = (JOBS, ATTEMPTS, LEDGER, EVENTS, ORDERS, PICTURES, TERMS, TAGS, FLEET, MACHINES)


def fill(url: str, project_id: str, first: int, last: int, *, pictures: int, nodes: int = NODES) -> None:
    """Add jobs with those numbers to a database of PostgreSQL, and what came of them. One of seven is an order.

    Whoever adds number 1 adds the nodes as well, and `page_examples` where there are 100 jobs. At the end PostgreSQL
    counts its tables, as it does in time.
    """
    engine = sa.create_engine(
        sa.make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool
    )
    values = {"first": first, "last": last, "project": project_id, "pictures": pictures, "nodes": nodes}
    values |= {
        "now": time.time_ns() // 1_000_000,
        "day": DAY_MS,
        "apart": APART_MS,
        "queued": QUEUED,
        "connected": CONNECTED,
    }
    with engine.connect() as connection:
        connection.exec_driver_sql("SET synchronous_commit = off")
        for statement in STATEMENTS:
            connection.execute(sa.text(statement.format(**values).replace(":", "\\:")))
        if first == 1:
            add_examples(connection, project_id, ended=range(2 * QUEUED + 1, last + 1), at_ms=values["now"])
        connection.exec_driver_sql("VACUUM ANALYZE")
