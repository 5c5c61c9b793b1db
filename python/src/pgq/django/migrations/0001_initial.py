"""Installs pgq, and tells Django of the models over its views."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from pgq.django.operations import InstallPgq


class Migration(migrations.Migration):
    """The columns of a model that is not managed do not matter here, but for its key."""

    initial: ClassVar[Any] = True
    dependencies: ClassVar[Any] = []
    operations: ClassVar[Any] = [
        InstallPgq(),
        migrations.CreateModel(
            name="Job",
            fields=[("id", models.BigIntegerField(primary_key=True))],
            options={
                "db_table": "pgq_jobs",
                "ordering": ["-id"],
                "managed": False,
                "default_permissions": ("view",),
                "permissions": [
                    ("retry_job", "Can retry job"),
                    ("cancel_job", "Can cancel job"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[("queue", models.TextField(primary_key=True))],
            options={
                "db_table": "pgq_queues",
                "ordering": ["queue"],
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
