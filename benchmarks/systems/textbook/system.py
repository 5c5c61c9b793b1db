"""The yardstick that everybody knows: one table, a status, UPDATE ... SKIP LOCKED."""

from benchmarks.system import System
from benchmarks.yardstick import Yardstick

SYSTEM: System = Yardstick(
    name="textbook table",
    lifecycle=True,
    notes="completed jobs are deleted",
    schema="textbook",
    tables_sql="""
        create table textbook.job (
            id bigint generated always as identity primary key,
            status text not null default 'ready',
            priority integer not null default 0,
            payload jsonb not null,
            created_at timestamptz not null default now(),
            claimed_at timestamptz
        );
        create index job_ready on textbook.job (priority desc, id) where status = 'ready';
    """,
)
