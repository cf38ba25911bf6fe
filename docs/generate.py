"""Writes the generated parts of docs/architecture.md. `--check` says whether they are up to date."""

import re
import sys
from pathlib import Path

from giornata.domain.job import mermaid
from giornata.domain.reasons import BAN, BLAME, RETRY, STRIKE, Reason

PAGE = Path(__file__).with_name("architecture.md")


def reasons_table() -> str:
    """Every reason with its row in each map."""

    def yes(value: bool) -> str:
        return "yes" if value else "–"

    rows = [f"| `{r}` | {BLAME[r]} | {yes(RETRY[r])} | {yes(STRIKE[r])} | {yes(BAN[r])} |" for r in Reason]
    head = "| reason | blame | tried again | strike | banned for this job |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def rendered(page: str) -> str:
    """The page with its generated parts made anew."""
    parts = {"states": f"```mermaid\n{mermaid()}\n```", "reasons": reasons_table()}
    for name, body in parts.items():
        pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        page = pattern.sub(lambda found, body=body: f"{found[1]}{body}\n{found[2]}", page)
    return page


if __name__ == "__main__":
    now = PAGE.read_text()
    if "--check" in sys.argv:
        sys.exit(rendered(now) != now)
    PAGE.write_text(rendered(now))
