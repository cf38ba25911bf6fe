"""The `generate` kind: draws the pictures of leases, many in one batch. Read workload first, then picture_batch."""
