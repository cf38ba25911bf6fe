"""Claims: who may begin what now, and the lease that a node gets. Read `claim` first."""
