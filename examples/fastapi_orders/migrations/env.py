"""Runs the migrations of the application."""

from alembic import context
from pgq.alembic import include_name
from sqlalchemy import create_engine

from examples.fastapi_orders.models import Base

with create_engine("postgresql+psycopg://").connect() as connection:
    context.configure(
        connection,
        target_metadata=Base.metadata,
        include_schemas=True,
        include_name=include_name,
    )
    with context.begin_transaction():
        context.run_migrations()
