"""What settings do to pgq."""

from benchmarks.scenario import Throughput, Variant

_DEFAULT = "default"


def _variant(name: str, title: str, setup: str = "", *, quick: bool = False) -> Variant:
    of = "" if name == _DEFAULT else _DEFAULT
    variables = {"batch": "10"}
    return Variant(name=name, title=title, variables=variables, setup=setup, of=of, quick=quick)


def _database(setting: str) -> str:
    return f"""
        do $$ begin
            execute format('alter database %I set {setting}', current_database());
        end $$
    """


def _fillfactor(percent: int) -> str:
    return "".join(f"alter table pgq.job_{slot} set (fillfactor = {percent});" for slot in range(6))


SCENARIO = Throughput(
    title="Settings",
    description=(
        "The closed loop of pgq with other settings. Asynchronous claims: the claim's statement "
        "sets synchronous_commit to off for its own transaction. Slots are left when they have "
        "grown to pgq.slot_size, 8 MB by default. 20 s each, with an autovacuum that looks "
        "every 5 s; at most 3 rounds."
    ),
    variants=[
        _variant(_DEFAULT, "defaults, nothing kept", quick=True),
        _variant(
            "keep",
            "completed jobs kept",
            "select pgq_configure_queue('default', keep_completed => '1 day')",
        ),
        _variant("async_claims", "asynchronous claims", quick=True),
        _variant("async", "all asynchronous", _database("synchronous_commit = off")),
        _variant("fill_70", "fillfactor 70", _fillfactor(70)),
        _variant("fill_100", "fillfactor 100", _fillfactor(100)),
        _variant("slot_1", "slots of 1 MB", _database("pgq.slot_size = 1048576")),
        _variant("slot_64", "slots of 64 MB", _database("pgq.slot_size = 67108864")),
    ],
    matrix=True,
    adds=10,
    takes="batch",
    ready=10_000,
    seconds=20,
    most=3,
    settings={"autovacuum_naptime": "5s"},
    scripts="loop",
    systems=("pgq",),
)
