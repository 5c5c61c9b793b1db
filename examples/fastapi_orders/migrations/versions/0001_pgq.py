"""Install pgq, and create the queue."""

import pgq.alembic
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do it."""
    pgq.alembic.install()
    op.execute("select pgq_create_queue('payments', max_attempts => 5)")
