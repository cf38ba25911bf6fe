"""Routing of pictures to nodes that hold their models, on a virtual clock. Read `routed_fleet` first."""
