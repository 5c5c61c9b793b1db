"""The dashboard as people use it, in Chromium."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, Literal

import bootstrap
import pytest
from pgserver import PATIENCE, Server
from playwright.sync_api import Browser, expect

from .dashboard import Dashboard, Window, serve, template_server, wait_for

SHOTS = Path(os.environ.get("PGQ_SCREENSHOTS", bootstrap.CACHE / "screenshots"))
PHONE = {"width": 390, "height": 844}
HOSTILE = "<img src=x onerror=alert(1)>\"''&<script>alert(2)</script>"

# A shop on a busy day: mails, reports, a crawler with a group that is blocked.
QUEUES = """
    select pgq_create_queue('emails', description => 'Mails to customers', rate_limit => 5000);
    select pgq_create_queue('reports', max_active => 8);
    select pgq_create_queue('crawl', group_on_dead => 'block', description => 'One site at a time');
"""
JOBS = """
    select count(*) from pgq_enqueue_many(
        array(select jsonb_build_object('to', 'user' || n || '@example.org', 'template', 'welcome')
                from generate_series(1, 600) n),
        'emails', headers => '{"task": "send_welcome"}');
    select count(*) from pgq_enqueue_many(
        array(select jsonb_build_object('month', n) from generate_series(1, 24) n),
        'reports', headers => '{"task": "render"}');
    select count(*) from pgq_enqueue_many(
        array(select jsonb_build_object('url', 'https://example.org/' || n)
                from generate_series(1, 12) n),
        'crawl', headers => '{"task": "fetch"}',
        group_keys => array_fill('example.org'::text, array[12]));
    select count(pgq_complete(id, token)) from pgq_dequeue(240, queue => 'emails',
        worker => 'host-1:mail');
    select count(pgq_fail(id, token, E'Traceback (most recent call last):\\n'
        '  File "mail.py", line 31, in send\\nSMTPError: 451 mailbox ' || id || ' is busy',
        retryable => id % 3 > 0))
      from pgq_dequeue(30, queue => 'emails', worker => 'host-2:mail');
    select count(*) from pgq_dequeue(5, '10 minutes', 'reports', 'host-1:reports');
    select count(*) from pgq_dequeue(7, '10 minutes', 'emails', 'host-2:mail');
    select pgq_fail(id, token, 'ConnectionError: example.org refused', retryable => false)
      from pgq_dequeue(1, queue => 'crawl', worker => 'crawler');
    select pgq_enqueue('{"to": "later@example.org"}', 'emails', run_at => now() + interval '2 h');
    select pgq_schedule('nightly', '30 2 * * *', '{"kind": "all"}', 'reports',
        timezone => 'Europe/Berlin');
    select pgq_schedule('poll', '*/5 * * * *', '{"page": 1}', 'crawl');
    select pgq_pause_schedule('poll');
"""
SHOP = QUEUES + JOBS
# Some more of it, so that lines have a shape.
MORE = (
    "select count(pgq_complete(id, token)) from pgq_dequeue({}, queue => 'emails');"
    "select count(pgq_complete(id, token)) from pgq_dequeue({}, queue => 'reports');"
    "select pgq_fail(id, token, 'SMTPError: 451', retryable => false)"
    "  from pgq_dequeue({}, queue => 'emails');"
)

# Each of these waits for the one before.
CHAIN = """
    select pgq_enqueue('1');
    select pgq_enqueue('2', after => '{1}');
    select pgq_enqueue('3', after => '{2}');
"""


def test_numbers_and_lists_move_by_themselves(dashboard: Dashboard) -> None:
    overview, jobs = dashboard.open(), dashboard.open("/jobs")
    overview.is_live()
    jobs.is_live()
    expect(overview.number("default", "ready")).to_have_text("0")
    dashboard.sql('select pgq_enqueue(\'{"to": "ada"}\')')
    expect(overview.number("default", "ready")).to_have_text("1")
    expect(jobs.row('"ada"')).to_contain_text("ready")
    jobs.row('"ada"').get_by_role("checkbox").check()
    dashboard.sql('select pgq_enqueue(\'{"to": "bob"}\')')
    expect(jobs.row('"bob"')).to_be_visible()
    expect(jobs.row('"ada"').get_by_role("checkbox")).to_be_checked()
    expect(jobs.row('"bob"').get_by_role("checkbox")).not_to_be_checked()


def test_a_frozen_page_stays_as_it_is(dashboard: Dashboard) -> None:
    frozen, other = dashboard.open(), dashboard.open()
    frozen.is_live()
    other.is_live()
    frozen.press("Freeze")
    expect(frozen.pulse).to_have_text("frozen")
    for number in range(1, 4):
        dashboard.sql("select pgq_enqueue('1')")
        expect(other.number("default", "ready")).to_have_text(str(number))
    expect(frozen.number("default", "ready")).to_have_text("0")
    frozen.page.keyboard.press("f")
    expect(frozen.number("default", "ready")).to_have_text("3")


def test_what_one_viewer_does_the_other_sees(dashboard: Dashboard) -> None:
    ann, bob = dashboard.open("/queue?name=default"), dashboard.open()
    bob.is_live()
    ann.press("Pause")
    expect(ann.told).to_contain_text("Queue default is paused")
    expect(ann.page, "it is told once").not_to_have_url(re.compile("done="))
    expect(bob.row("default")).to_contain_text("paused")
    ann.press("Resume")
    expect(bob.row("default")).not_to_contain_text("paused")


def test_single_jobs_are_retried_and_cancelled(dashboard: Dashboard) -> None:
    dashboard.dead(1)
    window = dashboard.open("/jobs?state=dead")
    window.row("SMTP").get_by_role("link").first.click()
    window.press("Retry")
    expect(window.told).to_have_text(re.compile("Job .* is ready again."))
    window.press("Cancel")
    expect(window.told).to_have_text(re.compile("Job .* is cancelled."))
    expect(window.page.get_by_role("heading", level=1)).to_contain_text("cancelled")
    window.go("/actions")
    expect(window.row("is ready again")).to_contain_text("anybody")


def test_an_active_job_is_cancelled_at_once_after_a_question(dashboard: Dashboard) -> None:
    job_id = dashboard.sql("select pgq_enqueue('1')")
    dashboard.sql("select count(*) from pgq_dequeue(worker => 'w')")
    window = dashboard.open(f"/job/{job_id}")
    window.press("Cancel at once…")
    expect(window.page.get_by_text("Cancel 1 job?")).to_be_visible()
    window.press("Cancel 1 job")
    expect(window.page.get_by_text("Done: 1 job is cancelled.")).to_be_visible()


@pytest.mark.long
def test_ten_thousand_jobs_are_read_in_pages_and_cancelled_in_steps(
    dashboard: Dashboard,
) -> None:
    dashboard.sql("""
        select count(*) from pgq_enqueue_many(
            array(select to_jsonb(n) from generate_series(1, 10000) n))
    """)
    window = dashboard.open("/jobs?state=ready")
    rows = window.page.locator("tbody tr")
    first = rows.evaluate_all("rows => rows.map(row => row.id)")
    window.page.get_by_role("link", name="Older").click()
    expect(window.page.get_by_role("link", name="Newest")).to_be_visible()
    second = rows.evaluate_all("rows => rows.map(row => row.id)")
    ids = [int(row.removeprefix("job-")) for row in (*first, *second)]
    assert ids == list(range(10_000, 9_900, -1))
    window.press("Cancel all that match…")
    expect(window.page.get_by_text("Cancel 10,000 jobs?")).to_be_visible()
    window.press("Cancel 10,000 jobs")
    expect(window.page.get_by_text(re.compile(r"At work: \d+ jobs are cancelled"))).to_be_visible()
    window.press("Stop")
    told = window.page.get_by_text(re.compile(r"Stopped: \d+ jobs are cancelled\."))
    expect(told).to_be_visible()
    window.go("/actions")
    expect(window.row("stopped: ")).to_be_visible()
    left = int(dashboard.sql("select count(*) from pgq_jobs where state = 'ready'"))
    assert 0 < left < 10_000
    assert left % 100 == 0, "whole steps"


def test_dead_jobs_of_a_kind_are_retried_together(dashboard: Dashboard) -> None:
    dashboard.dead(60)
    window = dashboard.open("/dead")
    expect(window.row("SMTP # mailbox # is busy")).to_contain_text("60")
    window.press("Retry…")
    expect(window.page.get_by_text("Retry 60 jobs?")).to_be_visible()
    window.press("Retry 60 jobs")
    expect(window.page.get_by_text("Done: 60 jobs are ready again.")).to_be_visible()
    assert dashboard.sql("select ready, dead from pgq_queues") == "60|0"


def test_a_purge_asks_first(dashboard: Dashboard) -> None:
    dashboard.dead(3)
    window = dashboard.open("/queue?name=default")
    window.page.get_by_label("dead", exact=True).check()
    window.is_live()
    window.press("Purge…")
    expect(window.page.get_by_text("about 3 jobs")).to_be_visible()
    window.press("Leave it")
    expect(window.page.get_by_text("Stopped")).to_be_visible()
    assert dashboard.sql("select dead from pgq_queues") == "3"
    window.go("/queue?name=default")
    window.page.get_by_label("dead", exact=True).check()
    window.press("Purge…")
    window.press("Purge 3 jobs")
    expect(window.page.get_by_text("Done: 3 jobs are deleted.")).to_be_visible()
    assert dashboard.sql("select dead from pgq_queues") == "0"


def test_groups_and_schedules_go_on(dashboard: Dashboard) -> None:
    dashboard.sql(SHOP)
    window = dashboard.open("/queue?name=crawl")
    window.press("Unblock")
    expect(window.told).to_contain_text("Group example.org goes on")
    window.go("/schedules")
    window.press("Resume", window.row("poll"))
    expect(window.told).to_contain_text("Schedule poll is resumed")
    window.press("Run now", window.row("nightly"))
    expect(window.told).to_contain_text(re.compile(r"job \d+ is enqueued"))
    window.press("Pause", window.row("nightly"))
    expect(window.row("nightly")).to_contain_text("paused")


def test_queues_that_are_selected_are_paused_and_resumed(dashboard: Dashboard) -> None:
    dashboard.sql("select pgq_create_queue(name) from unnest('{line,mail}'::text[]) name")
    dashboard.shows("/", "mail")
    window = dashboard.open()
    window.is_live()
    window.page.get_by_label("Select all on this page").check()
    window.page.get_by_label("Select queue line").uncheck()
    dashboard.sql("select pgq_enqueue('1')")
    expect(window.number("default", "ready")).to_have_text("1")
    expect(window.page.get_by_label("Select queue mail")).to_be_checked()
    window.press("Pause selected")
    expect(window.told).to_have_text("2 of 2 queues are done.")
    expect(window.row("mail")).to_contain_text("paused")
    expect(window.row("line")).not_to_contain_text("paused")
    window.page.get_by_label("Select queue mail").check()
    window.press("Resume selected")
    expect(window.told).to_contain_text("Queue mail is resumed")
    paused = dashboard.sql("select string_agg(queue, ' ') from pgq_queues where paused")
    assert paused == "default"


def test_the_keyboard_is_enough(dashboard: Dashboard) -> None:
    dashboard.dead(3)
    window = dashboard.open()
    window.is_live()
    keyboard, page = window.page.keyboard, window.page
    keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    keyboard.press("Escape")
    keyboard.press("g")
    keyboard.press("j")
    page.wait_for_url("**/jobs")
    window.is_live()
    keyboard.press("j")
    keyboard.press("j")
    keyboard.press("x")
    expect(page.locator("#tick-2")).to_be_checked()
    keyboard.press("k")
    keyboard.press("k")
    keyboard.press("Enter")
    page.wait_for_url("**/job/3")
    window.is_live()
    keyboard.press("/")
    keyboard.type("default")
    keyboard.press("Enter")
    page.wait_for_url("**/queue?name=default")


def test_a_row_keeps_the_focus_while_the_page_renews_itself(dashboard: Dashboard) -> None:
    dashboard.dead(2)
    window = dashboard.open("/jobs")
    window.is_live()
    window.page.keyboard.press("j")
    expect(window.page.locator("#job-2")).to_be_focused()
    dashboard.sql("select pgq_enqueue('\"new\"')")
    expect(window.row('"new"')).to_be_visible()
    expect(window.page.locator("#job-2")).to_be_focused()


def test_markup_in_every_field_is_text(browser: Browser, server: Server) -> None:
    with serve(browser, server, "--no-token") as dashboard:
        text = "'" + HOSTILE.replace("'", "''") + "'"
        dashboard.sql(f"""
            select pgq_create_queue({text}, description => {text}, group_on_dead => 'block');
            select pgq_enqueue('0', {text}, group_key => 'another');
            select pgq_heartbeat(id, token, checkpoint => to_jsonb({text}::text)),
                   pgq_complete(id, token, to_jsonb({text}::text))
              from pgq_dequeue(queue => {text});
            select pgq_enqueue(to_jsonb({text}::text), {text}, group_key => {text},
                dedupe_key => {text}, headers => jsonb_build_object('task', {text}::text));
            select pgq_fail(id, token, {text}, retryable => false)
              from pgq_dequeue(queue => {text}, worker => {text});
            select pgq_enqueue('2', {text}, group_key => {text});
            select pgq_enqueue('3', {text});
            select count(*) from pgq_dequeue(queue => {text}, worker => {text});
            select pgq_schedule({text}, '@daily', to_jsonb({text}::text), {text});
        """)
        window = dashboard.open()
        window.is_live()
        window.row(HOSTILE).get_by_role("link").first.click()
        window.is_live()
        window.press("Unblock")
        expect(window.told).to_contain_text(HOSTILE)
        ids = dashboard.sql("select id from pgq_jobs where group_key is not null").split()
        assert len(ids) == 3
        jobs = [f"/job/{one}" for one in ids]
        for path in ("/", "/jobs", *jobs, "/dead", "/workers", "/schedules", "/actions"):
            window.go(path)
            window.is_live()
            expect(window.pulse).to_have_class("beat")
            assert window.page.locator("img, main script").count() == 0, path
            assert HOSTILE in window.page.locator("main").inner_text(), path
        window.page.locator("#search").fill(HOSTILE)
        window.page.keyboard.press("Enter")
        expect(window.page.get_by_role("heading", level=1)).to_contain_text(HOSTILE)


def test_colours_that_were_chosen_stay(dashboard: Dashboard) -> None:
    window = dashboard.open(color_scheme="light")
    root = window.page.locator("html")
    window.press("Dark")
    for path in ("/", "/queue?name=default"):
        expect(root).to_have_attribute("data-theme", "dark")
        expect(window.page.get_by_role("button", name="Light")).to_be_visible()
        window.go(path)
    window.press("Light")
    expect(root).to_have_attribute("data-theme", "light")


def test_the_database_goes_and_comes_back(browser: Browser) -> None:
    with template_server() as server, serve(browser, server, "--no-token") as dashboard:
        window = dashboard.open()
        window.is_live()
        server.stop("immediate")
        expect(window.pulse).to_have_text("no database")
        expect(window.told).to_contain_text("The database does not answer")
        expect(window.row("default")).to_be_visible()
        server.start()
        window.is_live()
        expect(window.told).to_have_count(0)
        dashboard.sql("select pgq_enqueue('1')")
        expect(window.number("default", "ready")).to_have_text("1")
        dashboard.problems.clear()  # that a page could not be renewed


def test_the_page_says_when_the_dashboard_itself_is_gone(dashboard: Dashboard) -> None:
    window = dashboard.open()
    window.is_live()
    dashboard.process.terminate()
    expect(window.pulse).to_have_text("no answer")
    dashboard.problems.clear()


def test_a_role_that_may_observe_sees_and_is_offered_nothing(
    browser: Browser, server: Server
) -> None:
    with serve(browser, server, "--no-token", role="observer") as dashboard:
        dashboard.sql("select pgq_create_queue('secret')")
        dashboard.dead(2)
        window = dashboard.open()
        window.is_live()
        expect(window.page.locator("main")).not_to_contain_text("secret")
        for path in ("/queue?name=default", "/jobs", "/job/1", "/dead"):
            window.go(path)
            window.is_live()
            expect(window.page.locator("main button:not(.filter button)")).to_have_count(0)
            expect(window.page.locator("td.tick")).to_have_count(0)


def test_the_address_signs_in_and_out(browser: Browser, server: Server) -> None:
    with serve(browser, server) as dashboard:
        dashboard.address, _, token = dashboard.address.partition("/?token=")
        window = dashboard.open(f"/?token={token}")
        window.is_live()
        assert "token" not in window.page.url
        window.press("Sign out")
        window.page.get_by_label("Token").fill(token)
        window.press("Sign in")
        window.is_live()


def test_reading_needs_no_scripts(dashboard: Dashboard) -> None:
    dashboard.dead(60)
    dashboard.shows("/", ">60</a>")
    window = dashboard.open("/", java_script_enabled=False)
    window.row("default").get_by_role("link", name="60").click()
    expect(window.page.locator("tbody tr")).to_have_count(50)
    window.page.get_by_role("link", name="Older").click()
    expect(window.page.locator("tbody tr")).to_have_count(10)
    window.page.get_by_label("Task", exact=True).fill("none")
    window.press("Filter")
    expect(window.page.get_by_text("No job matches")).to_be_visible()
    window.go("/queue?name=default")
    window.press("Pause")
    expect(window.told).to_contain_text("is paused")


def test_a_chain_of_jobs_is_followed_through_its_drawings(dashboard: Dashboard) -> None:
    dashboard.sql(CHAIN)
    window = dashboard.open("/job/2")
    graph = window.page.locator("svg.graph")
    for job_id, drawn in ((3, "job 2, waiting"), (2, "job 1, ready"), (1, "job 2, waiting")):
        link = graph.get_by_role("link", name=re.compile(f"^job {job_id}, "))
        link.click()
        window.page.wait_for_url(f"**/job/{job_id}")
        expect(graph.get_by_role("link", name=drawn)).to_be_visible()
        expect(graph.locator("rect.self + text")).to_contain_text(f"job {job_id}, ")
    dashboard.sql("select pgq_complete(id, token) from pgq_dequeue()")
    expect(graph).to_have_count(0)


def line_of(dashboard: Dashboard, queue: str) -> list[str]:
    """Return the points of the line of a queue in the overview."""
    page = wait_for(dashboard.address)
    [row] = [row for row in page.split("<tr ") if f"name={queue}" in row]
    found = re.search(r'<polyline points="(.*?)"', row)
    return found[1].split() if found else []


def pages_of(dashboard: Dashboard, statements: str = SHOP) -> dict[str, str]:
    """Fill the shop, and return its pages by their names."""
    dashboard.sql(statements)
    dead = dashboard.sql("select min(id) from pgq_jobs where state = 'dead' and queue = 'emails'")
    waiting = dashboard.sql("select min(id) from pgq_jobs where state = 'waiting'")
    return {
        "queues": "/",
        "queue": "/queue?name=emails",
        "blocked": "/queue?name=crawl",
        "jobs": "/jobs?queue=emails",
        "job": f"/job/{dead}",
        "waiting": f"/job/{waiting}",
        "dead": "/dead",
        "workers": "/workers",
        "schedules": "/schedules",
        "actions": "/actions",
    }


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(
    dashboard: Dashboard, axe: str, scheme: Literal["light", "dark"]
) -> None:
    pages = pages_of(dashboard)
    window = dashboard.open(color_scheme=scheme)
    window.go("/queue?name=emails")
    window.press("Retry all dead…")
    pages["run"] = window.page.url.removeprefix(dashboard.address)
    expect(window.page.locator("p.question")).to_be_visible()
    for name, path in pages.items():
        window.go(path)
        window.is_live()
        assert faults_of(window, axe) == [], name
    # Pages that say why there is nothing to see; the browser complains of their status.
    for path in ("/nothing", "/job/123456789", "/queue?name=nothing"):
        window.go(path)
        expect(window.page.locator("body")).to_contain_text("There is no ")
        assert faults_of(window, axe) == [], path
    window.close()  # such a page is asked for again
    dashboard.problems.clear()


def faults_of(window: Window, axe: str) -> list[tuple[str, str]]:
    """Return what axe-core finds on a page: rules and elements."""
    window.page.evaluate(axe)
    found: dict[str, Any] = window.page.evaluate("axe.run()")
    assert found["passes"]
    return [(rule["id"], node["html"]) for rule in found["violations"] for node in rule["nodes"]]


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_before_the_queues_are_accessible(
    browser: Browser, server: Server, axe: str, scheme: Literal["light", "dark"]
) -> None:
    with serve(browser, server) as dashboard:
        dashboard.address, _, _ = dashboard.address.partition("/?token=")
        window = dashboard.open(color_scheme=scheme)
        expect(window.page.get_by_label("Token")).to_be_visible()
        assert faults_of(window, axe) == []
        window.page.get_by_label("Token").fill("wrong")
        window.press("Sign in")
        expect(window.told).to_have_text("That is not the token.")
        assert faults_of(window, axe) == []
        window.close()
        dashboard.problems.clear()  # the status
    elsewhere = ("--no-token", "--dsn", "postgresql:///postgres")
    with serve(browser, server, *elsewhere, is_ready=False) as dashboard:
        window = dashboard.open(color_scheme=scheme)
        expect(window.page.locator("body")).to_contain_text("Run 'pgq install'")
        assert faults_of(window, axe) == []
        window.close()
        dashboard.problems.clear()  # the status


@pytest.mark.long
def test_pages_fit_a_phone_and_pictures_are_taken(dashboard: Dashboard) -> None:
    dashboard.sql(QUEUES)
    dashboard.shows("/", "reports")
    pages = pages_of(dashboard, JOBS)
    for points, more in enumerate(((10, 1, 1), (90, 2, 3), (30, 1, 1), (60, 5, 1)), start=3):
        dashboard.sql(MORE.format(*more))
        ends_at = time.monotonic() + PATIENCE
        while len(line_of(dashboard, "emails")) < points:
            assert time.monotonic() < ends_at
    SHOTS.mkdir(parents=True, exist_ok=True)
    for name, scheme in (("queues", "light"), ("queue", "dark")):
        window = dashboard.open(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
        take(window, name, pages[name], f"{name}-{scheme}")
        window.close()
    window = dashboard.open(viewport=PHONE, color_scheme="dark", has_touch=True)
    for name, path in pages.items():
        take(window, name, path, f"{name}-phone")
        width = window.page.evaluate("document.scrollingElement.scrollWidth")
        assert width <= PHONE["width"], name


def take(window: Window, name: str, path: str, file: str) -> None:
    """Take a picture of a page, its charts included."""
    window.go(path)
    window.is_live()
    if name == "queue":
        expect(window.page.locator(".chart canvas")).to_have_count(3)
    window.page.screenshot(path=SHOTS / f"{file}.png")


def test_charts_are_drawn(dashboard: Dashboard) -> None:
    dashboard.sql(SHOP)
    window = dashboard.open("/queue?name=emails")
    expect(window.page.locator(".chart canvas")).to_have_count(3)
    expect(window.page.locator("#chart-flow")).to_contain_text("completed")
