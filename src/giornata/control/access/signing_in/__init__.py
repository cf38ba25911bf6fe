"""Ways to sign in, and the sessions that they open. Read `sessions` first."""
