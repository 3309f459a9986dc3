"""The statements about drained Tritons, which stay drained whatever Redis loses."""
from __future__ import annotations

from sqlalchemy import Column, Connection, String, Table, delete, select

from frontend.db.tables import metadata

# A row for each Triton that gets no new requests.
drained_tritons = Table(
    "drained_tritons", metadata,
    Column("address", String(255), primary_key=True),
)


def drained(connection: Connection) -> set[str]:
    """Their addresses."""
    return set(connection.scalars(select(drained_tritons.c.address)))


def set_drained(connection: Connection, address: str, drained: bool) -> None:
    """Drain a Triton, or don't any more. Doing it twice changes nothing."""
    connection.execute(delete(drained_tritons).where(drained_tritons.c.address == address))
    if drained:
        connection.execute(drained_tritons.insert().values(address=address))
