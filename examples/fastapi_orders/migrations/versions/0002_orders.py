"""Create the application's tables."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Do it."""
    op.create_table(
        "purchase",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("number", sa.String, nullable=False, unique=True),
        sa.Column("cents", sa.Integer, nullable=False),
        sa.Column("status", sa.String, nullable=False),
    )
    op.create_table(
        "payment",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("order_id", sa.Integer, sa.ForeignKey("purchase.id"), nullable=False),
        sa.Column("cents", sa.Integer, nullable=False),
        sa.Column("job", sa.BigInteger, nullable=False),
    )
