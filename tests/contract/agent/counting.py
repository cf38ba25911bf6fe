"""What the counting engine is asked for, and what it makes."""

ENDLESS = {"steps": 10**9, "every": 10**9, "step_s": 0.001}


def counted(steps: int) -> bytes:
    total = 0
    for step in range(1, steps + 1):
        total = (total * 31 + step) % 2**61
    return f"{steps} {total}\n".encode()
