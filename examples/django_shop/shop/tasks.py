"""The tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import django

from .models import Order, Payment

if TYPE_CHECKING or django.VERSION < (6, 0):
    from django_tasks import task
else:
    from django.tasks import task


@task(queue_name="payments")
def charge(order_id: int) -> int:
    """Note the payment of an order, and return what it is of.

    The backend is atomic: the payment and the end of the job commit together.
    """
    order = Order.objects.get(id=order_id)
    Payment.objects.create(order=order)
    return order.cents
