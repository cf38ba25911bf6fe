"""A fleet with liars whose training is audited by replay. Read `audited_fleet` first."""
