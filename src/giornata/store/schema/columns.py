"""Column types and naming rules that the tables have in common."""

from sqlalchemy import BigInteger, Column, Integer, MetaData

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite counts a rowid by itself only in a column of type INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")


def at(name: str, *, nullable: bool = False) -> Column[int]:
    """Return a column that holds an instant in epoch milliseconds."""
    return Column(name, BigInteger, nullable=nullable)
