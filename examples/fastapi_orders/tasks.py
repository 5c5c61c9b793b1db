"""The jobs of the application: what the app enqueues and the worker does."""

from __future__ import annotations

from dataclasses import dataclass

import pgq
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from .models import Order, Payment


@dataclass(frozen=True)
class TakePayment:
    """An order that is to be paid."""

    number: str


@pgq.task("payments", transaction=True)
async def take_payment(job: pgq.Job[TakePayment], session: AsyncSession) -> None:
    """Take the money: the worker commits the payment, the order and the end of the job together."""
    found = select(Order).where(Order.number == job.payload.number).with_for_update()
    order = (await session.scalars(found)).one()
    if order.cents > 100_000:
        raise pgq.GiveUp("the bank refuses more than 1,000.00")
    session.add(Payment(order_id=order.id, cents=order.cents, job=job.id))
    order.status = "paid"
