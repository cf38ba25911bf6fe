"""The audit log as it is written. Read `record`, which inserts rows, then `chain`, which numbers and hashes them."""
