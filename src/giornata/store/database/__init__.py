"""The database itself: connections, transactions and dialects. Read database first, then transaction."""
