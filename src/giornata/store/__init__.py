"""The store in SQL: one schema, two dialects. Read `schema`, then `database` and `jobs`."""
