"""Reading jobs, their histories, their pictures and their files. Read `read_jobs` first."""
