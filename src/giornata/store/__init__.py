"""The store in SQL: one schema, two dialects."""
