"""What a page of the dashboard does when it is renewed: what is open, and other answers."""

from __future__ import annotations

from pgserver import Server
from playwright.sync_api import Browser, Route, expect

from .dashboard import Dashboard, Window, serve


def test_what_is_open_stays_open(dashboard: Dashboard) -> None:
    dashboard.sql("""
        select pgq_schedule('s' || n, '@daily', '1', 'default') from generate_series(1, 7) n;
        select pgq_pause_schedule('s' || n) from generate_series(1, 7) n;
        select pgq_enqueue('1');
        select pgq_fail(id, token, E'first\\nlast', retryable => false) from pgq_dequeue();
    """)
    dashboard.shows("/", "s7 is paused")
    window, job = dashboard.open(), dashboard.open("/job/1")
    window.is_live()
    job.is_live()
    window.page.get_by_text("3 more").click()
    job.page.locator("summary").click()
    dashboard.sql("select pgq_enqueue('2')")
    expect(window.number("default", "ready")).to_have_text("1")
    expect(window.page.get_by_text("s7 is paused")).to_be_visible()
    dashboard.sql("select pgq_retry(1)")
    expect(job.page.get_by_role("heading", level=1)).to_contain_text("ready")
    expect(job.page.locator("details pre")).to_be_visible()


def open_on_a_job(dashboard: Dashboard) -> Window:
    """Return a window on the page of jobs, which shows one and renews itself."""
    dashboard.sql("select pgq_enqueue('1')")
    dashboard.shows("/jobs", "/job/1")
    window = dashboard.open("/jobs")
    window.is_live()
    return window


def test_what_is_typed_stays(dashboard: Dashboard) -> None:
    window = open_on_a_job(dashboard)
    queue = window.page.get_by_label("To queue", exact=True)
    queue.fill("default")
    window.page.get_by_label("Select job 1", exact=True).check()
    window.sees("htmx:after:swap", 3)
    expect(queue).to_have_value("default")
    expect(window.page.get_by_label("Select job 1", exact=True)).to_be_checked()


def test_an_answer_that_comes_while_somebody_types_is_left(dashboard: Dashboard) -> None:
    window = open_on_a_job(dashboard)
    queue = window.page.get_by_label("To queue", exact=True)

    def type_meanwhile(route: Route) -> None:
        answer = route.fetch()
        queue.fill("default")
        route.fulfill(response=answer)

    window.page.route("**/jobs", type_meanwhile, times=1)
    window.sees("htmx:before:swap")
    window.page.evaluate("new Promise(requestAnimationFrame)")
    expect(queue).to_have_value("default")


def test_a_refusal_is_told_once(dashboard: Dashboard) -> None:
    window = open_on_a_job(dashboard)
    posts: list[str] = []
    window.page.on("request", lambda request: posts.append(request.method))
    window.page.get_by_label("Select job 1", exact=True).check()
    window.press("Move selected…")
    expect(window.page.get_by_role("heading", level=1)).to_have_text("Bad Request")
    window.sees("pgq:tick", 3)
    assert posts.count("POST") == 1
    dashboard.problems.clear()  # the browser tells of the 400


def test_a_button_never_becomes_another_one(dashboard: Dashboard) -> None:
    """Else a click that has begun, or Enter, would do the opposite, or do it to something else."""
    dashboard.sql("select pgq_schedule(n, '@daily') from unnest('{a,b}'::text[]) n")
    dashboard.shows("/schedules", "b")
    queue, schedules = dashboard.open("/queue?name=default"), dashboard.open("/schedules")
    queue.is_live()
    schedules.is_live()
    pause = queue.page.get_by_role("button", name="Pause", exact=True).element_handle()
    run = schedules.page.get_by_role("button", name="Run now").first.element_handle()
    dashboard.sql("select pgq_pause('default'), pgq_unschedule('a')")
    expect(queue.page.get_by_role("button", name="Resume")).to_be_visible()
    expect(schedules.page.get_by_role("button", name="Run now")).to_have_count(1)
    assert [one.evaluate("button => button.isConnected") for one in (pause, run)] == [False, False]


def test_a_double_click_acts_once(dashboard: Dashboard) -> None:
    dashboard.sql("select pgq_schedule('a', '@daily')")
    dashboard.shows("/schedules", "@daily")
    window = dashboard.open("/schedules")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    window.page.route("**/do", hold)
    window.page.get_by_role("button", name="Run now").evaluate(
        "(button) => new Promise((resolve) => { button.click();"
        " setTimeout(() => resolve(button.click()), 300); })"
    )
    while not held:
        window.page.wait_for_timeout(50)
    held[-1].continue_()
    expect(window.told).to_have_text("Schedule a: job 1 is enqueued.")
    assert len(held) == 1


def test_nothing_changes_while_somebody_aims_at_a_button(dashboard: Dashboard) -> None:
    window = dashboard.open("/queue?name=default")
    window.is_live()
    window.page.get_by_role("button", name="Pause").hover()
    expect(window.pulse).to_have_text("held")
    window.is_live()


def test_an_answer_that_says_what_is_wrong_takes_nothing_away(dashboard: Dashboard) -> None:
    window = open_on_a_job(dashboard)
    window.page.get_by_label("Select job 1", exact=True).check()
    body = '<div id="live">The server has not answered that.</div>'
    window.page.route("**/jobs", lambda route: route.fulfill(status=503, body=body))
    window.sees("htmx:before:swap")
    window.page.unroute("**/jobs")
    window.sees("htmx:after:swap")
    expect(window.page.get_by_label("Select job 1", exact=True)).to_be_checked()
    dashboard.problems.clear()  # the browser tells of the 503


def test_an_answer_of_a_proxy_leaves_the_page_as_it_is(dashboard: Dashboard) -> None:
    window = dashboard.open("/jobs")
    window.is_live()
    seen: list[str] = []

    def fail(route: Route) -> None:
        seen.append(route.request.url)
        route.fulfill(status=502, body="<h1>Bad Gateway</h1>", content_type="text/html")

    window.page.route("**/jobs", fail)
    dashboard.sql("select pgq_enqueue('1')")
    while not seen:
        window.page.wait_for_event("request")
    expect(window.page.get_by_text("There is no job")).to_be_visible()
    expect(window.page.get_by_text("Bad Gateway")).to_have_count(0)
    window.page.unroute("**/jobs")
    dashboard.sql("select pgq_enqueue('\"after\"')")
    expect(window.row("after")).to_be_visible()
    dashboard.problems.clear()  # the browser tells of the 502


def test_a_session_that_ends_while_a_page_is_open_leads_to_the_form(
    browser: Browser, server: Server
) -> None:
    with serve(browser, server) as dashboard:
        dashboard.address, _, token = dashboard.address.partition("/?token=")
        window = dashboard.open(f"/?token={token}")
        window.is_live()
        window.page.context.clear_cookies()
        dashboard.sql("select pgq_enqueue('1')")
        expect(window.page.get_by_label("Token")).to_be_visible()
        dashboard.problems.clear()


def test_a_session_that_ends_while_a_page_is_not_seen_leads_to_the_form(
    browser: Browser, server: Server
) -> None:
    def show(*, is_hidden: bool) -> None:
        window.page.evaluate(
            """hidden => {
                Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
                document.dispatchEvent(new Event("visibilitychange"));
            }""",
            is_hidden,
        )

    with serve(browser, server) as dashboard:
        dashboard.address, _, token = dashboard.address.partition("/?token=")
        window = dashboard.open(f"/?token={token}")
        window.is_live()
        show(is_hidden=True)
        window.page.context.clear_cookies()
        show(is_hidden=False)
        expect(window.page.get_by_label("Token")).to_be_visible()
        dashboard.problems.clear()


def test_a_queue_that_is_seen_later_has_its_charts(dashboard: Dashboard) -> None:
    window = dashboard.open()
    window.go("/queue?name=later")
    window.is_live()
    dashboard.sql("select pgq_create_queue('later')")
    dashboard.sql("select pgq_enqueue('1', 'later')")
    chart = window.page.locator("#chart-flow canvas")
    expect(chart).to_be_visible()
    dashboard.sql("select pgq_drop_queue('later', true)")
    expect(chart).to_have_count(0)
    window.page.set_viewport_size({"width": 700, "height": 700})
    dashboard.sql("select pgq_create_queue('later')")
    dashboard.sql("select pgq_enqueue('1', 'later')")
    expect(chart).to_be_visible()
    dashboard.problems.clear()  # that it was not found before
