"""The tables, and the queue: pgq itself is installed by the migration that comes before."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first one."""

    initial = True
    dependencies: ClassVar = [("pgq", "0001_initial")]
    operations: ClassVar = [
        migrations.RunSQL(
            "select pgq_create_queue('payments', max_attempts => 5, if_not_exists => true)",
            migrations.RunSQL.noop,
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("email", models.EmailField(max_length=254)),
                ("cents", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Payment",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("order", models.ForeignKey(on_delete=models.CASCADE, to="shop.order")),
                ("at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
    ]
