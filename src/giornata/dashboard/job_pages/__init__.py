"""Pages of jobs: the list, one job, a comparison, a new training job. Read `job_page` first."""
