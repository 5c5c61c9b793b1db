"""The physical floor: what PostgreSQL takes for a row that comes and goes, and nothing else."""

from benchmarks.system import System
from benchmarks.yardstick import Yardstick

SYSTEM: System = Yardstick(
    name="floor",
    lifecycle=False,
    notes="no queue: the claim is the DELETE, the completion a transaction that does nothing",
    schema="floor",
    tables_sql="""
        create table floor.job (
            id bigint generated always as identity primary key,
            payload jsonb not null
        );
    """,
)
