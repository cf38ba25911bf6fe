"""The dashboard: pages that people read in a browser. Read `app`, then `visit`, then `job_pages.job_page`.

Pages call the use cases that the API calls; they know no SQL and decide nothing.
"""
