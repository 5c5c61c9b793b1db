"""Takes orders."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .models import Order
from .tasks import charge


@csrf_exempt
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Add an order and the task that charges it: both are there, or neither."""
    order = Order(email=request.POST["email"], cents=int(request.POST["cents"]))
    try:
        with transaction.atomic():
            order.save()
            result = charge.enqueue(order.pk)
            order.full_clean()  # too late, to show a rollback
    except ValidationError as exc:
        return JsonResponse({"errors": exc.messages}, status=400)
    return JsonResponse({"order": order.pk, "task": result.id}, status=202)
