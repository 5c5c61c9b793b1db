"""The plugin for pytest: each test has a database of its own, and nothing is left of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from pgq._databases import Databases
from pgserver import Server

from .pages import read, snippets
from .sessions import Connection, until

pytest_plugins = ["pytester"]

PLAIN = ["-p", "no:asyncio", "-p", "no:anyio"]
ASYNCIO = ["-o", "asyncio_default_fixture_loop_scope=function"]
NO_SERVER = "postgresql:///?host=/nowhere"

USES_A_DATABASE = """
    def test_a_database(pgq_dsn):
        pass
"""


@pytest.fixture
def project(
    pytester: pytest.Pytester, server: Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.Pytester]:
    """A directory of tests that use the plugin on the private server, and leave nothing there."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PGQ_TEST_DSN", raising=False)
    pytester.makeini("[pytest]\nfilterwarnings = error")
    yield pytester
    assert databases(server) == set()


def databases(server: Server) -> set[str]:
    return set(server.psql("select datname from pg_database where datname ~ '^pgq_test_'").split())


def dsn_of(server: Server, role: str = Server.user) -> str:
    return f"postgresql://{role}:{server.password}@/postgres?host={server.host}&port={server.port}"


def test_each_test_has_a_database_of_its_own(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import asyncio
        import asyncpg
        import pytest

        async def enqueue(dsn):
            connection = await asyncpg.connect(dsn)
            try:
                return await connection.fetchval("select pgq_enqueue('1')")
            finally:
                await connection.close()

        @pytest.mark.parametrize("number", [1, 2])
        def test_a_database(pgq_dsn, number):
            assert asyncio.run(enqueue(pgq_dsn)) == 1
    """)
    project.runpytest_subprocess(*PLAIN).assert_outcomes(passed=2)


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "mark"),
    [
        ([*ASYNCIO], "asyncio"),
        ([*ASYNCIO, "-p", "no:anyio"], "asyncio"),
        ([*ASYNCIO, "-p", "no:anyio", "--asyncio-mode=auto"], "filterwarnings('error')"),
        ([*ASYNCIO], "anyio"),
        (["-p", "no:asyncio"], "anyio"),
    ],
    ids=["asyncio beside anyio", "asyncio", "asyncio auto", "anyio beside asyncio", "anyio"],
)
def test_a_pool_belongs_to_the_loop_of_the_test(
    project: pytest.Pytester, options: list[str], mark: str
) -> None:
    backend = """
        @pytest.fixture
        def anyio_backend():
            return "asyncio"
    """
    project.makepyfile(f"""
        import asyncpg
        import pytest
        {backend if mark == "anyio" else ""}
        @pytest.mark.{mark}
        @pytest.mark.parametrize("number", [1, 2])
        async def test_a_pool(pgq_pool, number):
            assert isinstance(pgq_pool, asyncpg.Pool)
            assert await pgq_pool.fetchval("select pgq_enqueue('1')") == 1
    """)
    project.runpytest_subprocess(*options).assert_outcomes(passed=2)


@pytest.mark.once
def test_a_pool_needs_a_plugin(project: pytest.Pytester) -> None:
    project.makepyfile("""
        def test_a_pool(pgq_pool):
            pass
    """)
    result = project.runpytest_subprocess(*PLAIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["pgq_pool needs pytest-asyncio, or anyio and its mark"])


@pytest.mark.once
def test_a_database_can_be_had_while_a_loop_runs(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import asyncpg
        import pytest

        @pytest.mark.asyncio
        async def test_a_database(request):
            connection = await asyncpg.connect(request.getfixturevalue("pgq_dsn"))
            assert await connection.fetchval("select pgq_enqueue('1')") == 1
            await connection.close()
    """)
    project.runpytest_subprocess(*ASYNCIO).assert_outcomes(passed=1)


@pytest.mark.once
@pytest.mark.parametrize(
    "schema",
    [
        "'create table signup (email text)'",
        "lambda dsn: asyncio.run(create(dsn))",
        "create",
        "lambda dsn: create(dsn)",
    ],
    ids=["text", "function", "coroutine function", "coroutine"],
)
def test_the_schema_of_the_application_is_in_each_database(
    project: pytest.Pytester, schema: str
) -> None:
    project.makeconftest(f"""
        import asyncio
        import asyncpg
        import pytest

        async def create(dsn):
            connection = await asyncpg.connect(dsn)
            await connection.execute("create table signup (email text)")
            await connection.close()

        @pytest.fixture(scope="session")
        def pgq_schema():
            return {schema}
    """)
    project.makepyfile("""
        import pytest

        @pytest.mark.asyncio
        @pytest.mark.parametrize("number", [1, 2])
        async def test_a_table(pgq_pool, number):
            await pgq_pool.execute("insert into signup values ('ada')")
            assert await pgq_pool.fetchval("select count(*) from signup") == 1
    """)
    project.runpytest_subprocess(*ASYNCIO).assert_outcomes(passed=2)


@pytest.mark.once
def test_an_error_in_the_schema_is_shown(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pytest

        @pytest.fixture(scope="session")
        def pgq_schema():
            return "create tabel signup ()"

        def test_a_database(pgq_dsn):
            pass
    """)
    result = project.runpytest_subprocess(*PLAIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(['E * syntax error at or near "tabel"'])


@pytest.mark.once
@pytest.mark.parametrize("place", ["option", "environment", "ini"])
def test_the_server_is_named_in_three_places(
    project: pytest.Pytester, server: Server, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    right = dsn_of(server)
    monkeypatch.setenv("PGHOST", "/nowhere")
    project.makeini(f"[pytest]\npgq_dsn = {right if place == 'ini' else NO_SERVER}")
    if place != "ini":
        monkeypatch.setenv("PGQ_TEST_DSN", right if place == "environment" else NO_SERVER)
    options = [f"--pgq-dsn={right}"] if place == "option" else []
    project.makepyfile(USES_A_DATABASE)
    project.runpytest_subprocess(*PLAIN, *options).assert_outcomes(passed=1)


@pytest.mark.once
def test_without_a_server_the_error_says_how_to_name_one(project: pytest.Pytester) -> None:
    project.makepyfile(USES_A_DATABASE)
    result = project.runpytest_subprocess(*PLAIN, f"--pgq-dsn={NO_SERVER}")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["pgq's tests have no server: *", "Name a server by --pgq-dsn, *"])
    result.stdout.no_fnmatch_line("*During handling of the above exception*")


def test_without_the_right_to_create_databases_the_error_says_so(
    project: pytest.Pytester, server: Server
) -> None:
    server.psql("create role plain login")
    project.makepyfile(USES_A_DATABASE)
    try:
        result = project.runpytest_subprocess(*PLAIN, f"--pgq-dsn={dsn_of(server, 'plain')}")
    finally:
        server.psql("drop role plain")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*permission denied to create database", "*ROLE ... CREATEDB."])
    result.stdout.no_fnmatch_line("*During handling of the above exception*")


def test_without_the_extension_the_error_says_so(project: pytest.Pytester) -> None:
    project.makeconftest("""
        from pgq import _sql

        _sql.CREATE_EXTENSION = "create extension there_is_none_of_this_name"
    """)
    project.makepyfile(USES_A_DATABASE)
    result = project.runpytest_subprocess(*PLAIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["pgq's tests cannot use the server: *", "Install pgq on the *"])


async def test_a_run_drops_what_a_killed_one_has_left_and_nothing_else(
    project: pytest.Pytester, server: Server, connection: Connection
) -> None:
    other = Databases(dsn_of(server))
    other.prepare("")
    dsn = other.create()
    of_the_other = databases(server)
    assert len(of_the_other) == 2, "the template, and that of the test"

    project.makepyfile("""
        import os
        import signal

        def test_is_killed(pgq_dsn):
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert project.runpytest_subprocess(*PLAIN).ret == -signal.SIGKILL
    assert len(databases(server)) == 4

    async def is_gone() -> bool:
        count: int = await connection.fetchval(
            "select count(*) from pg_stat_activity where application_name ~ '^pgq_test_'"
        )
        return count == 1

    await until(is_gone)
    project.makepyfile(USES_A_DATABASE)
    project.runpytest_subprocess(*PLAIN).assert_outcomes(passed=1)
    assert databases(server) == of_the_other
    other.drop(dsn)
    other.close()


@pytest.mark.once
def test_a_run_that_does_not_use_it_pays_nothing(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "/nowhere")
    project.makepyfile("""
        import sys

        def test_nothing():
            assert "pytest_pgq" in sys.modules
            assert not {"pgq", "asyncpg", "asyncio"} & set(sys.modules)
    """)
    project.runpytest_subprocess(*PLAIN, "-p", "no:hypothesispytest").assert_outcomes(passed=1)


@pytest.mark.once
def test_jobs_run_inline_in_fixtures_of_any_kind(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pgq
        import pytest
        import pytest_asyncio
        from pgq import testing

        ran = []

        @pgq.task("default")
        async def note(job: pgq.Job[int]) -> None:
            ran.append(job.payload)

        @pytest.fixture
        def inline():
            with testing.inline(pgq.Worker(tasks=[note])) as errors:
                yield errors

        @pytest_asyncio.fixture
        async def async_inline():
            with testing.inline(pgq.Worker(tasks=[note])) as errors:
                yield errors

        @pytest.mark.asyncio
        async def test_with_a_fixture(inline, pgq_pool):
            await note.enqueue(1, connection=pgq_pool)
            assert ran == [1]

        @pytest.mark.asyncio
        async def test_with_an_asynchronous_one(async_inline, pgq_pool):
            await note.enqueue(2, connection=pgq_pool)
            assert ran == [1, 2]

        @pytest.mark.asyncio
        async def test_without(pgq_pool):
            await note.enqueue(3, connection=pgq_pool)
            assert ran == [1, 2]

        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_with_anyio(inline, pgq_pool):
            await note.enqueue(4, connection=pgq_pool)
            assert ran == [1, 2, 4]
    """)
    project.runpytest_subprocess(*ASYNCIO).assert_outcomes(passed=4)


@pytest.mark.once
def test_jobs_run_inline_in_each_test_of_a_session(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pgq
        import pytest
        from pgq import testing

        ran = []

        @pgq.task("default")
        async def note(job: pgq.Job[int]) -> None:
            ran.append(job.payload)

        @pytest.fixture(scope="session", autouse=True)
        def inline():
            with testing.inline(pgq.Worker(tasks=[note])) as errors:
                yield errors

        @pytest.mark.asyncio
        @pytest.mark.parametrize("number", [1, 2])
        async def test_that_begins_anew(pgq_pool, number):
            await note.enqueue(number, connection=pgq_pool)
            assert ran[-1] == number
    """)
    project.runpytest_subprocess(*ASYNCIO).assert_outcomes(passed=2)


@pytest.mark.once
def test_the_examples_of_the_python_page_pass(project: pytest.Pytester) -> None:
    page = read("docs/python.md")
    section = page.split("\n## Testing\n")[1].split("\n## ")[0]
    examples = snippets(section, "python")
    project.makepyfile("\n".join([snippets(page, "python")[0], *examples]))
    result = project.runpytest_subprocess(*ASYNCIO, "-p", "no:anyio", "--asyncio-mode=auto")
    result.assert_outcomes(passed="".join(examples).count("\nasync def test_"))
