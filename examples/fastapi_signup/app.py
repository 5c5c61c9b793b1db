"""Takes signups: uvicorn examples.fastapi_signup.app:app."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import UUID

import asyncpg
import pgq
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel

from .tasks import Welcome, send_welcome


class Signup(BaseModel):
    """Who signs up."""

    email: str


class Accepted(BaseModel):
    """The signup, to ask for later."""

    id: UUID


class Progress(BaseModel):
    """What has become of the mail."""

    state: pgq.JobState
    message_id: str | None
    last_error: str | None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    """Hold a pool for as long as the app runs."""
    async with asyncpg.create_pool() as pool:
        app.state.pool = pool
        yield


def get_pool(request: Request) -> asyncpg.Pool:
    """Return the pool of the app."""
    pool: asyncpg.Pool = request.app.state.pool
    return pool


Pool = Annotated[asyncpg.Pool, Depends(get_pool)]
app = FastAPI(lifespan=lifespan)


# The transaction is not a dependency: FastAPI would answer first, and commit then.
@app.post("/signups", status_code=202)
async def sign_up(signup: Signup, pool: Pool) -> Accepted:
    """Add the signup and its job: both are there or neither."""
    async with pool.acquire() as connection, connection.transaction():
        mail = await send_welcome.enqueue(Welcome(signup.email), connection=connection)
        try:
            signup_id = await connection.fetchval(
                "insert into signup (email, job) values ($1, $2) returning id",
                signup.email,
                mail.id,
            )
        except asyncpg.UniqueViolationError as exc:
            raise HTTPException(409, "this address has signed up before") from exc
    return Accepted(id=signup_id)


@app.get("/signups/{signup_id}")
async def show_progress(signup_id: UUID, pool: Pool) -> Progress:
    """Tell whether the mail was sent; does not wait for it."""
    job_id = await pool.fetchval("select job from signup where id = $1", signup_id)
    if job_id is None:
        raise HTTPException(404, "there is no such signup")
    job = await send_welcome.on(pool).get(job_id)
    if job is None:
        raise HTTPException(410, "the job has ended so long ago that it is not kept any more")
    return Progress(state=job.state, message_id=job.result, last_error=job.last_error)
