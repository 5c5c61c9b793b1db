"""What settings do to pgq."""

from benchmarks.scenario import Throughput, Variant

_JOBS = [f"pgq.job_{slot}" for slot in range(6)]
_FLOORS = [f"pgq.floor_{slot}" for slot in range(6)]


def _variant(name: str, title: str, setup: str = "", batch: str = "10") -> Variant:
    return Variant(name=name, title=title, variables={"batch": batch}, setup=setup)


def _database(setting: str) -> str:
    return f"""
        do $$ begin
            execute format('alter database %I set {setting}', current_database());
        end $$
    """


def _tables(tables: list[str], setting: str) -> str:
    return "".join(f"alter table {table} set ({setting});" for table in tables)


SCENARIO = Throughput(
    title="Settings",
    description=(
        "The closed loop of pgq with other settings. Asynchronous claims: the claim's statement "
        "sets synchronous_commit to off for its own transaction. Slots are left when they have "
        "grown to pgq.slot_size, 8 MB by default."
    ),
    variants=[
        _variant("default", "as installed, nothing kept"),
        _variant(
            "keep",
            "completed jobs kept",
            "select pgq_configure_queue('default', keep_completed => '1 day')",
        ),
        _variant("async_claims", "asynchronous claims"),
        _variant("async", "all asynchronous", _database("synchronous_commit = off")),
        _variant("fill_70", "fillfactor 70", _tables(_JOBS, "fillfactor = 70")),
        _variant("fill_100", "fillfactor 100", _tables(_JOBS, "fillfactor = 100")),
        _variant(
            "no_vacuum",
            "autovacuum off for pgq's tables",
            _tables(_JOBS + _FLOORS, "autovacuum_enabled = off"),
        ),
        _variant("slot_1", "slots of 1 MB", _database("pgq.slot_size = 1048576")),
        _variant("slot_64", "slots of 64 MB", _database("pgq.slot_size = 67108864")),
    ],
    matrix=True,
    adds=10,
    takes="batch",
    ready=10_000,
    scripts="loop",
    systems=("pgq",),
)
