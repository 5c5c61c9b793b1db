"""Takes orders: uvicorn examples.fastapi_orders.app:app."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from .models import Order, sessions
from .tasks import TakePayment, take_payment


class NewOrder(BaseModel):
    """What a customer orders."""

    number: str
    cents: Annotated[int, Field(gt=0)]


class OrderState(BaseModel):
    """How far an order is."""

    number: str
    status: str


app = FastAPI()


# The session is not a dependency: FastAPI would answer first, and commit then.
@app.post("/orders", status_code=202)
async def place_order(new: NewOrder) -> OrderState:
    """Add the order and the job that takes its payment: both are there or neither."""
    async with sessions() as session:
        await take_payment.enqueue(TakePayment(new.number), session=session)
        session.add(Order(number=new.number, cents=new.cents))
        try:
            await session.commit()  # writes the order; if there is one, no job is left
        except IntegrityError as exc:
            raise HTTPException(409, "there is an order with this number") from exc
    return OrderState(number=new.number, status="new")


@app.get("/orders/{number}")
async def show_order(number: str) -> OrderState:
    """Tell how far an order is."""
    async with sessions() as session:
        status = await session.scalar(select(Order.status).where(Order.number == number))
    if status is None:
        raise HTTPException(404, "there is no such order")
    return OrderState(number=number, status=status)
