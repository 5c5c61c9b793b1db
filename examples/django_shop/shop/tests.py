"""Tests of the shop: `manage.py test`."""

from __future__ import annotations

from django.test import TestCase
from pgq.django.test import collect, inline

from .models import Order, Payment


class OrderTests(TestCase):
    """Orders that are placed."""

    def place(self, email: str) -> int:
        """Place an order, and return the status of the answer."""
        return self.client.post("/orders/", {"email": email, "cents": 500}).status_code

    def test_an_order_is_charged(self) -> None:
        """The task runs before the view has answered."""
        with inline() as results:
            assert self.place("ada@example.org") == 202
        assert [result.return_value for result in results] == [500]
        assert Payment.objects.count() == 1

    def test_an_order_enqueues_one_task(self) -> None:
        """The task does not run."""
        with collect() as results:
            self.place("ada@example.org")
        order = Order.objects.get()
        assert [result.args for result in results] == [[order.pk]]
        assert not Payment.objects.exists()
