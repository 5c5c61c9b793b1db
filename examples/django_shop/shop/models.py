"""What the shop keeps."""

from __future__ import annotations

from datetime import datetime

from django.db import models


class Order(models.Model):
    """An order, which is paid when there is a payment."""

    email: models.EmailField[str, str] = models.EmailField()
    cents: models.PositiveIntegerField[int, int] = models.PositiveIntegerField()

    def __str__(self) -> str:
        """Name it in the admin."""
        return f"{self.email}: {self.cents / 100:.2f}"


class Payment(models.Model):
    """What a task has written. Nothing but the task keeps it from being there twice."""

    order: models.ForeignKey[Order, Order] = models.ForeignKey(Order, models.CASCADE)
    at: models.DateTimeField[datetime, datetime] = models.DateTimeField(auto_now_add=True)
