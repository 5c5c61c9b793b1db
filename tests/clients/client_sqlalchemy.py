"""pgq from SQLAlchemy: one TAP line for each step that is not the same as with psycopg alone.

PGHOST and so on lead to the database. PGQ_PREPARE=off is for poolers.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, Final

from sqlalchemy import BigInteger, Engine, Row, Select, create_engine, func, literal, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

QUEUE: Final = "client-sqlalchemy"
DEQUEUE: Final = text("SELECT id, token, payload FROM pgq_dequeue(1, '1 minute', :queue)")
POP: Final = text("SELECT payload FROM pgq_pop(1, :queue)")

numbers = itertools.count(1)


class LeaseLostError(Exception):
    """Another worker has the job."""


class Base(DeclarativeBase):
    pass


class Signup(Base):
    __tablename__ = "sqlalchemy_signup"
    email: Mapped[str] = mapped_column(primary_key=True)


class Welcome(Base):
    __tablename__ = "sqlalchemy_welcome"
    email: Mapped[str] = mapped_column(primary_key=True)


def enqueue(payload: object) -> Select[int]:
    call = func.pgq_enqueue(literal(payload, JSONB), QUEUE, type_=BigInteger)
    return select(call)


def sign_up(session: Session, email: str) -> int:
    """Add a row and its job, in the session's transaction: both commit, or neither does."""
    session.add(Signup(email=email))
    return session.scalars(enqueue({"to": email})).one()


def dequeue(engine: Engine) -> Row[Any] | None:
    with engine.begin() as connection:
        return connection.execute(DEQUEUE, {"queue": QUEUE}).one_or_none()


def complete(session: Session, job: Row[Any]) -> None:
    """Complete a job in the transaction that writes its result, which happens once then."""
    receipt = [literal(job.id, BigInteger), literal(job.token, BigInteger)]
    if not session.scalar(select(func.pgq_complete(*receipt))):
        raise LeaseLostError
    session.add(Welcome(email=job.payload["to"]))


def pop(session: Session) -> bool:
    """Do a short job in the transaction that removes it, without a lease."""
    job = session.execute(POP, {"queue": QUEUE}).one_or_none()
    if job is not None:
        session.add(Welcome(email=job.payload["to"]))
    return job is not None


def rows(engine: Engine, table: type[Base]) -> int:
    with Session(engine) as session:
        return session.scalars(select(func.count()).select_from(table)).one()


def ok(name: str, passed: bool) -> None:
    number = next(numbers)
    if not passed:
        raise SystemExit(f"not ok {number} - {name}")
    print(f"ok {number} - {name}", flush=True)


def main() -> None:
    options = {"prepare_threshold": None} if os.environ.get("PGQ_PREPARE") == "off" else {}
    engine = create_engine("postgresql+psycopg://", connect_args=options)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.execute(select(func.pgq_create_queue(QUEUE)))

    with Session(engine) as session, session.begin():
        job_id = sign_up(session, "ada@sqlalchemy.example")
    with Session(engine) as session:
        sign_up(session, "bob@sqlalchemy.example")
        session.rollback()
    job = dequeue(engine)
    assert job is not None
    ok("enqueue commits with its transaction", job.id == job_id and rows(engine, Signup) == 1)

    with Session(engine) as session, session.begin():
        complete(session, job)
    lost = False
    try:
        with Session(engine) as session, session.begin():
            complete(session, job)
    except LeaseLostError:
        lost = True
    ok("complete commits with its transaction", lost and rows(engine, Welcome) == 1)

    with Session(engine) as session, session.begin():
        sign_up(session, "eve@sqlalchemy.example")
    with Session(engine) as session:
        tried = pop(session)
        session.rollback()
    with Session(engine) as session, session.begin():
        done = pop(session) and not pop(session)
    ok("pop ends with its transaction", tried and done and rows(engine, Welcome) == 2)
    engine.dispose()
    print(f"1..{next(numbers) - 1}")


main()
