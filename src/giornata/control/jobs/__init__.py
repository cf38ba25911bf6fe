"""Jobs as users see them: submitted, read, stopped, retried. Read `submission.submit` first."""
