"""pgq from Django: one TAP line for each step that is not the same as with psycopg alone.

PGHOST and so on lead to the database. Nothing has to be set for poolers.
"""

from __future__ import annotations

import itertools
import json
import os
from typing import Final

import django
from django.conf import settings
from django.db import connection, transaction

QUEUE: Final = "client-django"

numbers = itertools.count(1)


class LeaseLostError(Exception):
    """Another worker has the job."""


def sign_up(email: str) -> int:
    """Add a row and its job, in the caller's transaction: both commit, or neither does."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO signup VALUES (%s)", [email])
        query = "SELECT pgq_enqueue(%s::jsonb, %s)"
        cursor.execute(query, [json.dumps({"to": email}), QUEUE])
        [job_id] = cursor.fetchone()
    return int(job_id)


def welcome(email: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO welcome VALUES (%s)", [email])


def dequeue() -> tuple[int, int, str] | None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, token, payload FROM pgq_dequeue(1, '1 minute', %s)", [QUEUE])
        job: tuple[int, int, str] | None = cursor.fetchone()
    return job


@transaction.atomic
def complete(job_id: int, token: int, payload: str) -> None:
    """Complete a job in the transaction that writes its result, which happens once then."""
    welcome(json.loads(payload)["to"])  # Django leaves jsonb as text
    with connection.cursor() as cursor:
        cursor.execute("SELECT pgq_complete(%s::bigint, %s::bigint)", [job_id, token])
        if cursor.fetchone() != (True,):
            raise LeaseLostError


@transaction.atomic
def pop() -> bool:
    """Do a short job in the transaction that removes it, without a lease."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT payload FROM pgq_pop(1, %s)", [QUEUE])
        row = cursor.fetchone()
    if row is not None:
        welcome(json.loads(row[0])["to"])
    return row is not None


def rows(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table} WHERE email LIKE '%%@django.example'")
        [count] = cursor.fetchone()
    return int(count)


def ok(name: str, passed: bool) -> None:
    number = next(numbers)
    if not passed:
        raise SystemExit(f"not ok {number} - {name}")
    print(f"ok {number} - {name}", flush=True)


def main() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS signup (email text)")
        cursor.execute("CREATE TABLE IF NOT EXISTS welcome (email text)")
        cursor.execute("SELECT pgq_create_queue(%s)", [QUEUE])

    with transaction.atomic():
        job_id = sign_up("ada@django.example")
    with transaction.atomic():
        sign_up("bob@django.example")
        transaction.set_rollback(True)
    job = dequeue()
    assert job is not None
    ok("enqueue commits with its transaction", job[0] == job_id and rows("signup") == 1)

    complete(*job)
    lost = False
    try:
        complete(*job)
    except LeaseLostError:
        lost = True
    ok("complete commits with its transaction", lost and rows("welcome") == 1)

    sign_up("eve@django.example")
    with transaction.atomic():
        tried = pop()
        transaction.set_rollback(True)
    ok("pop ends with its transaction", tried and pop() and not pop() and rows("welcome") == 2)
    print(f"1..{next(numbers) - 1}")


settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["PGDATABASE"],
        }
    }
)
django.setup()
main()
