"""The seed's tables beside ours, for people."""

from collections.abc import Sequence

from giornata.cli.output import Output
from giornata.cli.pretrain_plan_words import broken, say_lines, say_table
from giornata.pretrain.planning.facts import Facts
from giornata.pretrain.planning.paper import PaperRow, StepRow, headline, paper, table_3

TITLES = {
    "1": "Table 1. Torch loader that encodes on 32 A100-80G, images/s",
    "2": "Table 2. Phase 1 (256 px) on 4 p4de, before FSDP and torch.compile",
    "4": "Table 4. Both phases on 32 A100-80G",
    "4, left out": "What the price of table 4 leaves out, and what its own table 3a would cost",
    "encoders": "Encoders for the final rates: the seed had 40",
    "mosaic": "mosaicml/diffusion, the same samples, $2 per A100-hour",
}
MARKS = (
    "published: the seed's posts say so; recovered: found elsewhere; calculated: follows from published figures. "
    "Sources stand in facts.toml of giornata.pretrain.planning."
)


def say_paper(facts: Facts, out: Output) -> None:
    """Table after table, what to make of a row below it."""
    rows = paper(facts)
    for place, (table, title) in enumerate(TITLES.items()):
        if place:
            out.say("")
        if table == "4":
            _steps(list(table_3(facts)), out)
        out.say(title)
        _table([row for row in rows if row.table == table], out)
    out.say("")
    say_lines((*_findings(facts), MARKS), out)


def _table(rows: Sequence[PaperRow], out: Output) -> None:
    theirs = [_number(row.theirs, row.unit) for row in rows]
    differences = [row.difference for row in rows]
    say_table(
        [
            ("", [f"  {row.what}" for row in rows], False),
            ("theirs", theirs, True),
            ("", [str(row.mark or "") for row in rows], False),
            ("ours", [_number(row.ours, row.unit) for row in rows], True),
            ("", ["" if each is None else _share(each) for each in differences], True),
        ],
        out,
    )
    for row in rows:
        if row.note:
            for part in broken(f"{row.what}: {row.note}", out, first="    ", rest="      "):
                out.hint(part)


def _steps(rows: Sequence[StepRow], out: Output) -> None:
    for table in dict.fromkeys(row.table for row in rows):
        shown = [row for row in rows if row.table == table]
        out.say(f"Table {table}. {shown[0].gpus} {shown[0].gpu}, latents at hand; MFU is ours")
        rates = {px: [f"{row.rates[px]:,.0f}" for row in shown] for px in (256, 512)}
        mfus = {px: [f"{row.mfus[px]:.1%}" for row in shown] for px in (256, 512)}
        say_table(
            [
                ("", [f"  {row.step}" for row in shown], False),
                ("256 images/s", rates[256], True),
                ("MFU", mfus[256], True),
                ("512 images/s", rates[512], True),
                ("MFU", mfus[512], True),
                ("", [str(row.mark) for row in shown], False),
            ],
            out,
        )
        out.say("")


def _findings(facts: Facts) -> list[str]:
    found = headline(facts)
    return [
        f"The seed's 40 encoders hold its own final recipe back: {found.encoders_256} are needed at 256 pixels and "
        f"{found.encoders_512} at 512, without headroom.",
        "Its published price is the UNet's alone: encoding and a month of storage come on top, and most of what is "
        "stored is text that could be encoded beside the run.",
    ]


def _share(difference: float) -> str:
    """`+0.2%`; no sign where it rounds to nothing."""
    return "0.0%" if abs(difference) < 0.0005 else f"{difference:+.1%}"


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "USD":
        return f"${value:,.0f}"
    return f"{value:,.2f}" if unit == "days" else f"{value:,.1f}" if unit == "h" else f"{value:,.0f}"
