import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import workers
from benchmarks.capture import Statement, bound, gset, read_statements
from benchmarks.figures import (
    Bar,
    Failure,
    Figure,
    Participant,
    Reading,
    Results,
    median_ratio,
    number,
    of_every_peer,
    of_itself,
    of_system,
    of_variant,
    percentile,
)
from benchmarks.offered import Observed, Tick
from benchmarks.pgbench import BenchmarkError, Run, read_seconds, render
from benchmarks.report import Section
from benchmarks.report import render as render_report
from benchmarks.scenario import Scenario, Throughput, Variant
from benchmarks.system import Database
from benchmarks.watch import Look, completed

pytestmark = pytest.mark.constant

SYSTEMS = {
    "pgq": Participant(short="pgq", name="pgq", kind="own", version="1.0"),
    "floor": Participant(short="floor", name="floor", kind="yardstick", lifecycle=False),
    "quick": Participant(short="quick", name="Quick", kind="peer", version="2.0"),
    "log": Participant(short="log", name="Log", kind="peer", lifecycle=False),
    "gone": Participant(short="gone", name="Gone", kind="peer", reason="no such\npackage"),
}


def make_results(values: Mapping[str, list[float]]) -> Results:
    results = Results(systems=SYSTEMS)
    for system, rounds in values.items():
        for number_of_round, value in enumerate(rounds):
            results.add(Figure(variant="", system=system, round=number_of_round, value=value))
    return results


def test_a_ratio_is_taken_within_each_round_before_the_median() -> None:
    assert median_ratio({0: 10, 1: 50, 2: 90}, {0: 10, 1: 100, 2: 30}) == 1.0
    assert median_ratio({0: 10, 1: 50}, {1: 100}) == 0.5
    assert median_ratio({0: 10}, {}) is None
    assert median_ratio({0: 10}, {0: 0}) is None


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([5, 1, 4, 2, 3], 50) == 3
    assert percentile(range(1, 101), 99) == 99
    assert percentile([7], 99) == 7
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)


def test_placeholders_are_replaced_and_an_unknown_one_is_an_error() -> None:
    assert render("select {{call}}(:batch)", {"call": "claim"}) == "select claim(:batch)"
    with pytest.raises(BenchmarkError, match=r"\{\{other\}\}, there are: call"):
        render("select {{other}}", {"call": "claim"})


def test_transactions_between_two_times_have_parts_of_seconds() -> None:
    run = Run(transactions=30, seconds=3, counts={100: 10, 102: 20})
    assert run.between(100, 103) == 30
    assert run.between(100.5, 102.25) == 10
    assert run.between(0, 100) == 0


def test_what_counts_begins_with_the_first_whole_second_after_the_warm_ones() -> None:
    run = Run(transactions=0, seconds=0, counts={100: 1, 101: 2, 102: 10, 103: 20, 104: 7})
    assert run.per_second(1, 2) == 15
    assert run.per_second(0, 4) == 39 / 4
    for warm, seconds in ((1, 4), (4, 1)):
        with pytest.raises(BenchmarkError, match="too late"):
            run.per_second(warm, seconds)
    with pytest.raises(BenchmarkError, match="too late"):
        Run(transactions=0, seconds=0).per_second(0, 1)


def test_logs_of_all_threads_are_added_and_the_greatest_lag_is_kept() -> None:
    lines = ["100 10 900 9 50 200 700 7 20 3000 0 0 0 0 0 0", "100 5 400 4 60 90 70 7 20 4500 0"]
    lines += ["101 7 900 9 50 200 0 0 0 0 0 0 0 0 0 0"]
    counts, lags = read_seconds(lines)
    assert counts == {100: 15, 101: 7}
    assert lags == {100: 4.5, 101: 0}
    run = Run(transactions=22, seconds=2, counts=counts, lags=lags)
    assert (run.lag(100, 101), run.lag(100.5, 102), run.lag(102, 103)) == (4.5, 0, 0)


def test_logs_without_a_rate_had_no_lag_before_postgresql_15() -> None:
    assert read_seconds(["100 10 900 9 50 200", "100 2 900 9 50 200"]) == ({100: 12}, {})


def test_each_message_of_a_client_is_one_statement_of_the_log() -> None:
    at = "2026-11-21 20:00:00.000 UTC"
    log = f"""{at} [7] LOG:  statement: begin
{at} [7] LOG:  execute s1: select $1,
\t$2
{at} [7] DETAIL:  Parameters: $1 = 'it''s', $2 = NULL
{at} [9] LOG:  checkpoint starting: time
{at} [8] LOG:  execute <unnamed>: select pgq_wait('{{default}}')
{at} [7] ERROR:  deadlock detected
{at} [7] STATEMENT:  select 1
"""
    assert list(read_statements(log)) == [
        Statement(text="begin"),
        Statement(text="select $1,\n$2", parameters=("it's", None)),
        Statement(text="select pgq_wait('{default}')"),
    ]


def test_a_job_counts_when_it_is_completed_and_not_when_its_transaction_ends() -> None:
    run = Run(transactions=30, seconds=3, counts={100: 10, 101: 10, 102: 10})
    first, last = Look(at=100.5, live=1000), Look(at=102.5, live=1040)
    assert completed(run, 10, first, last) == 160


def test_parameters_are_replaced_outside_of_strings_names_and_comments() -> None:
    statement = Statement(
        text="""select '$1', "$2", $1::text -- $2""" + "\n" + "from f($2, $3 /* $1 */);",
        parameters=("it's", None, ":id"),
    )
    assert bound(statement).splitlines() == [
        """select '$1', "$2", 'it''s'::text  """,
        r"from f(NULL, E'\x3aid'  )",
    ]
    assert bound(statement, {2: ":ids"}).splitlines()[1] == r"from f(:ids, E'\x3aid'  )"


def test_colons_that_pgbench_would_take_for_variables_are_hidden() -> None:
    statement = Statement(text=r"""select a[b:c], d::int, '10:30', 'at:noon\'""")
    assert bound(statement) == r"""select a[b: c], d::int, '10:30', E'at\x3anoon\\'"""


def test_claimed_rows_become_variables_and_a_with_stays_at_the_top() -> None:
    taken = "taken as (\n{}\n)\nselect count(*) as claimed from taken \\gset"
    assert gset("select 1", {"claimed": "count(*)"}) == "with " + taken.format("select 1")
    text = gset("with a as (select (1)), b as (select 2)\nupdate job", {"claimed": "count(*)"})
    assert text == "with a as (select (1)), b as (select 2),\n" + taken.format("update job")


def test_a_bar_can_compare_two_variants_and_look_at_a_figure_itself() -> None:
    results = Results(systems=SYSTEMS)
    for variant, value in (("two", 10.0), ("one", 16.0)):
        results.add(Figure(variant=variant, system="pgq", round=0, value=value))
    bar = of_variant("two", 1.5, text="one call", variant="one")
    assert bar.judge(results) == ("met", Reading(value=1.6))
    bar = of_itself(15, text="bytes", metric="jobs/s", variant="one", at_most=True)
    assert bar.judge(results) == ("missed", Reading(value=16.0))
    assert of_itself(1, text="bytes", metric="bytes").judge(results) == (
        "not measured",
        Reading(value=None),
    )


def test_completed_jobs_are_those_enqueued_and_not_waiting() -> None:
    ticks = [
        Tick(at=100.0 + second, live=live, bytes=0, dead_tuples=0, cpu=second / 100)
        for second, live in ((0, 0), (1, 5), (2, 1))
    ]
    produced = Run(transactions=20, seconds=2, counts={100: 10, 101: 10})
    seen = Observed(start=100.0, produced=produced, ticks=ticks, waits=[(100.5, 3), (101.5, 4)])
    assert seen.completed(0, 1) == (5, 1)
    assert seen.completed(0, 2) == (19, 2)
    assert seen.wait(0, 2) == 4
    assert seen.wait(2, 3) is None
    assert seen.cpu(0, 1) == pytest.approx(2000)


def test_every_peer_means_the_best_one_with_a_life_cycle_where_that_is_asked_for() -> None:
    results = make_results({"pgq": [90, 90], "quick": [60, 60], "log": [100, 100]})
    assert of_every_peer().judge(results)[0] == "missed"
    verdict, reading = of_every_peer(lifecycle=True).judge(results)
    assert (verdict, reading) == ("met", Reading(value=1.5, note="of Quick, the best of 1"))


def test_a_system_that_failed_in_a_later_round_has_no_figure() -> None:
    results = make_results({"pgq": [10, 10], "floor": [10]})
    results.add(Failure(variant="", system="floor", reason="deadlock"))
    assert of_system("floor", 0.5, name="the floor").judge(results) == (
        "not measured",
        Reading(value=None),
    )


def test_a_bar_is_missed_where_pgq_itself_failed() -> None:
    results = make_results({"floor": [10], "quick": [10]})
    results.add(Failure(variant="", system="pgq", reason="deadlock"))
    for bar in (of_system("floor", 0.5, name="the floor"), of_every_peer()):
        assert bar.judge(results) == ("missed", Reading(value=None, note="failed"))
    bar = of_variant("", 1.5, text="one call", variant="one")
    assert bar.judge(results)[0] == "missed"
    assert of_itself(1, text="other", metric="MB", variant="one").judge(results)[0] != "missed"


def test_a_peer_that_failed_is_named_beside_the_best_of_the_others() -> None:
    results = make_results({"pgq": [90], "quick": [60], "log": [100]})
    results.add(Failure(variant="", system="log", reason="deadlock"))
    _, reading = of_every_peer().judge(results)
    assert reading == Reading(value=1.5, note="of Quick, the best of 1; failed: Log")


def test_a_bar_can_be_an_upper_limit() -> None:
    bar = Bar(text="<= 620", measure=lambda _: Reading(value=700), limit=620, at_most=True)
    assert bar.judge(make_results({}))[0] == "missed"


def test_every_peer_can_be_one_that_takes_less() -> None:
    results = make_results({"pgq": [3, 3, 3], "quick": [2, 2, 4], "log": [6, 6, 6]})
    bar = of_every_peer(at_most=True, label="p50")
    assert bar.text == "p50: <= every peer"
    assert bar.judge(results) == ("missed", Reading(value=1.5, note="of Quick, the best of 2"))
    results = make_results({"pgq": [3], "quick": [4], "log": [6]})
    assert bar.judge(results) == ("met", Reading(value=0.75, note="of Quick, the best of 2"))


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (12345.6, 98.76, 1.234, 0)] == [
        "12,346",
        "98.8",
        "1.23",
        "0",
    ]


def test_the_report_has_figures_and_verdicts() -> None:
    results = make_results({"pgq": [80, 100, 90], "floor": [100, 100, 100], "quick": [45, 45, 45]})
    results.add(Failure(variant="", system="log", reason="a | b"))
    scenario = Throughput(
        title="Enqueue",
        description="One each.",
        adds=1,
        bars=[of_system("floor", 0.95, name="the floor"), of_every_peer()],
    )
    text = render_report(
        remark="Remark.",
        environment={"PostgreSQL": "18.4"},
        systems=list(SYSTEMS.values()),
        sections=[Section(scenario=scenario, results=results, plots=["plots/enqueue.svg"])],
    )
    for line in (
        "| Enqueue | >= 0.95 of the floor | 0.9 | **missed** |",
        "Of 2 bars: 1 met, 1 missed, 0 not measured.",
        "| PostgreSQL | 18.4 |",
        "* Gone: no such package",
        "| pgq | 1.0 | 90.0 | 80.0 - 100 | 0.90 | 1.00 |",
        "| Quick | 2.0 | 45.0 | 45.0 - 45.0 | 0.45 | 0.50 |",
        "* Log failed: a \\| b",
        "| >= 0.95 of the floor | 0.9 | **missed** |",
        "| >= every peer | 2 of Quick, the best of 1; failed: Log | met |",
        "![Enqueue](plots/enqueue.svg)",
    ):
        assert line in text.splitlines()


def test_a_matrix_has_variants_in_rows_and_metrics_in_columns() -> None:
    results = Results(systems=SYSTEMS)
    for metric, value in (("p50 ms", 0.5), ("buffers", 120)):
        results.add(Figure(variant="", system="pgq", round=0, value=value, metric=metric))
    results.add(Figure(variant="", system="floor", round=0, value=2, metric="p50 ms"))
    text = render_report(
        remark="",
        environment={},
        systems=[],
        sections=[
            Section(scenario=Throughput(title="", description="", matrix=True), results=results)
        ],
    )
    for line in (
        "|  | system | p50 ms | buffers |",
        "|  | pgq | 0.5 | 120 |",
        "|  | floor | 2 |  |",
    ):
        assert line in text.splitlines()


def test_a_matrix_has_the_spread_of_several_rounds_and_ratios_within_them() -> None:
    results = Results(systems=SYSTEMS)
    for variant, values in (("two", (10, 20, 30)), ("one", (30, 20, 45))):
        for turn, value in enumerate(values):
            results.add(Figure(variant=variant, system="pgq", round=turn, value=value))
    scenario = Throughput(
        title="",
        description="",
        variants=[Variant(name="two", title="two calls"), Variant(name="one", of="two")],
        settings={"autovacuum": "off"},
        matrix=True,
    )
    text = render_report(
        remark="",
        environment={},
        systems=[],
        sections=[Section(scenario=scenario, results=results)],
    )
    for line in (
        "The server runs with autovacuum = off here.",
        "|  | system | jobs/s | ratio |",
        "| two calls | pgq | 20.0 (10.0 - 30.0) |  |",
        "| one | pgq | 30.0 (20.0 - 45.0) | 1.50 of two calls |",
    ):
        assert line in text.splitlines()


@pytest.fixture
def database() -> Database:
    server: Any = SimpleNamespace(
        user="postgres", password="", host="/nowhere", port=5432, environment=lambda: {**os.environ}
    )
    return Database(server=server, name="bench")


def test_workers_tell_when_they_begin_a_job_and_end_with_the_block(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_GRACE", 0.1)
    program = tmp_path / "worker.py"
    program.write_text(
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "(pathlib.Path(__file__).parent / f'{os.getpid()}.pid').touch()\n"
        "print('ready', flush=True)\n"
        "print(sys.argv[2] + str(time.monotonic()), flush=True)\n"
        "time.sleep(600)\n"
    )
    begin = time.monotonic()
    with workers.running(program, database, 2, arguments=["0"]) as running:
        starts = [running.next_start(), running.next_start()]
        assert running.lines() == []
    assert all(begin < start < time.monotonic() for start in starts)
    pids = [int(file.stem) for file in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_that_has_ended_is_a_failure_of_its_system(
    database: Database, tmp_path: Path
) -> None:
    program = tmp_path / "worker.py"
    program.write_text("raise ImportError('no such\\nHINT: install it')\n")
    with (
        pytest.raises(BenchmarkError, match=r"status 1: ImportError: no such$"),
        workers.running(program, database),
    ):
        pass
    program.write_text("print('ready'); print('what?', flush=True); input()\n")
    with (
        workers.running(program, database) as running,
        pytest.raises(BenchmarkError, match=r"said: what\?"),
    ):
        running.next_start()


def test_the_error_that_a_worker_ended_with_is_the_first_one() -> None:
    text = """Traceback (most recent call last):
  File "errors.py", line 1, in <module>
pgq.Error: value out of range
Exception ignored in: <coroutine object>
RuntimeError: Event loop is closed
"""
    assert workers.first_error(text) == "pgq.Error: value out of range"
    assert workers.first_error("node:internal\nno such file\n") == "no such file"
    assert workers.first_error("") == "without a word"


def test_a_worker_that_does_nothing_is_a_failure_of_its_system(
    database: Database, tmp_path: Path
) -> None:
    program = tmp_path / "worker.py"
    program.write_text("import time; print('ready', flush=True); time.sleep(600)\n")
    with (
        workers.running(program, database) as running,
        pytest.raises(BenchmarkError, match="nothing for 1 s"),
    ):
        running.next_start(0.1)


def test_pgq_and_the_peers_that_have_one_bring_a_worker() -> None:
    place = Path(__file__).parents[2] / "benchmarks" / "systems"
    names = {file.parent.name for file in place.glob("*/system.py")}
    without = {name for name in names if workers.program(name) is None}
    assert without == {"floor", "skytools_pgq", "textbook"}


SCENARIOS = sorted(
    file.parent.name
    for file in Path(__file__).parents[2].glob("benchmarks/scenarios/*/scenario.py")
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_can_be_loaded(name: str) -> None:
    module = importlib.import_module(f"benchmarks.scenarios.{name}.scenario")
    assert isinstance(module.SCENARIO, Scenario)
