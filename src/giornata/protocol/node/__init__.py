"""Messages of nodes: leases, heartbeats, uploads, and the pipe between agent and engine. Read `work` first."""
