"""The process on a node that claims jobs, renews leases and moves bytes. The agent never
imports torch. Read `agent`, then `attempt` and `platform`.
"""
