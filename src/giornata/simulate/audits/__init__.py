"""A fleet with liars whose training is audited by replay; read `audited_fleet` first."""
