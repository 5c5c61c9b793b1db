"""The tables of the application, and its sessions."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# Where the database is, the variables of libpq tell.
engine = create_async_engine("postgresql+asyncpg://", pool_size=20)
sessions = async_sessionmaker(engine)


class Base(DeclarativeBase):
    """Base of the tables."""


class Order(Base):
    """What somebody has bought."""

    __tablename__ = "purchase"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[str] = mapped_column(unique=True)  # the shop's own
    cents: Mapped[int]
    status: Mapped[str] = mapped_column(default="new")


class Payment(Base):
    """Money that was taken for an order."""

    __tablename__ = "payment"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("purchase.id"))
    cents: Mapped[int]
    job: Mapped[int] = mapped_column(BigInteger)
