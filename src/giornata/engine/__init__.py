"""The process that owns the GPU and keeps models warm between jobs. Read `__main__`, then `assignment`."""
