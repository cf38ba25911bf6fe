"""Progress for people, programs and trackers. Read `progress_lines` first."""
