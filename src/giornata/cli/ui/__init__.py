"""Terminal output: tables, sentences and the progress of a job. Read `output` first."""
