"""All tests: what is there when they begin is kept out of the garbage collector, as servers and engines keep it.

The collection of the tests makes some million objects, most of them torch's. Python would search among them many
times on the way, and in full at each `gc.collect()` of a test.
"""

import gc

gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
