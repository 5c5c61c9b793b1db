"""Orders in the admin, beside the jobs that pgq.django has there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from .models import Order

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Order]
else:
    Base = admin.ModelAdmin


@admin.register(Order)
class OrderAdmin(Base):
    """The orders."""

    list_display = ("id", "email", "cents")
