"""The audit log as it is written: `record` inserts rows, `chain` gives them their numbers and hashes."""
