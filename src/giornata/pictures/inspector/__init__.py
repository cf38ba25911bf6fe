"""The inspector: a process of its own that decodes strangers' pictures. Read `__main__`, then `examine`.

Only this package of `giornata.pictures` loads Pillow. The rest starts it with `python -m` and never imports it.
"""
