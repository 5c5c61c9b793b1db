// What pages do beside links and forms: they renew themselves, obey keys and draw charts.
(() => {
  "use strict";

  const base = document.body.dataset.base;
  const pulse = document.getElementById("pulse");
  const PLACES = { q: "/", j: "/jobs", d: "/dead", w: "/workers", s: "/schedules", a: "/actions" };
  const CHARTS_EVERY = 5000;
  const ANSWER_WITHIN = 3000;
  const AIM_FOR = 1000;
  let stream = null;
  let missing = 0;
  let isFirst = true;
  let isFrozen = false;
  let aimedAt = 0;

  // Live

  function tell(is, text) {
    if (pulse.dataset.is !== is) {
      pulse.dataset.is = is;
      pulse.textContent = text;
    }
    pulse.classList.remove("beat");
    requestAnimationFrame(() => pulse.classList.add("beat"));
  }

  // Nothing is to change under a pointer that moves to a button.
  document.addEventListener("pointermove", (event) => {
    if (event.target.closest("#live button")) aimedAt = Date.now();
  });

  function isBusy() {
    const chosen = getSelection();
    const isReading = chosen && !chosen.isCollapsed;
    const writes = document.activeElement?.matches("#live input:not([type=checkbox])");
    const aims = Date.now() - aimedAt < AIM_FOR;
    return isFrozen || isReading || writes || aims || document.querySelector("dialog[open]");
  }

  function renew() {
    if (!isBusy()) htmx.trigger(document.body, "pgq:tick");
    if (!isFrozen) drawCharts();
  }

  // An answer that is no page of the dashboard is from a proxy, or asks to sign in.
  document.addEventListener("htmx:before:swap", (event) => {
    const { response, text } = event.detail.ctx;
    const isPage = text.includes('<div id="live"');
    if (isPage && response.status < 500 && !isBusy()) return;
    event.preventDefault();
    if (response.status >= 500) tell("lost", "no answer");
    else if (!isPage) location.reload();
  });

  // A tab that is not seen has no stream: browsers allow few connections to one address.
  function listen() {
    if (document.hidden) {
      stream?.close();
      stream = null;
    } else if (!stream) {
      stream = new EventSource(`${base}/events`);
      const look = (is, text) => () => {
        if (isFrozen) tell("frozen", "frozen");
        else if (is === "live" && isBusy()) tell("held", "held");
        else tell(is, text);
        if (!isFirst) renew();
        isFirst = false;
      };
      stream.addEventListener("tick", look("live", "live"));
      stream.addEventListener("lost", look("lost", "no database"));
      stream.addEventListener("open", () => {
        clearTimeout(missing);
        missing = 0;
      });
      stream.addEventListener("error", () => {
        // A stream ends every few minutes, and is begun anew within a second.
        missing ||= setTimeout(() => tell("lost", "no answer"), ANSWER_WITHIN);
        // After an answer that is no stream the browser does not try again. The page may know why.
        if (stream?.readyState === EventSource.CLOSED) {
          stream = null;
          renew();
          setTimeout(listen, 5000);
        }
      });
    }
  }
  document.addEventListener("visibilitychange", listen);
  addEventListener("pagehide", () => stream?.close());
  addEventListener("pageshow", (event) => {
    if (event.persisted) {
      stream = null;
      listen();
    }
  });

  const freezer = document.getElementById("freeze");
  freezer.addEventListener("click", () => {
    isFrozen = !isFrozen;
    freezer.textContent = isFrozen ? "Unfreeze" : "Freeze";
    tell(isFrozen ? "frozen" : "live", isFrozen ? "frozen" : "live");
    renew();
  });
  freezer.hidden = false;

  // A form is sent once, also by a double click.
  let sent = new WeakSet();
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (sent.has(event.target)) event.preventDefault();
    sent.add(event.target);
  });
  addEventListener("pageshow", () => (sent = new WeakSet()));

  // What was done is told once.
  const url = new URL(location.href);
  if (url.searchParams.has("done")) {
    url.searchParams.delete("done");
    history.replaceState(null, "", url);
  }

  // Selection

  document.addEventListener("change", (event) => {
    if (event.target.id !== "all") return;
    for (const box of document.querySelectorAll("td.tick input")) {
      box.checked = event.target.checked;
    }
  });

  function showAll() {
    document.getElementById("all")?.removeAttribute("hidden");
  }
  document.addEventListener("htmx:after:swap", showAll);
  document.addEventListener("htmx:after:swap", () => drawCharts());

  // Keys

  const rows = () => [...document.querySelectorAll("table.rows tbody tr")];
  let lastKey = "";

  function move(step) {
    const all = rows();
    const at = all.indexOf(document.activeElement?.closest?.("tr"));
    const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : at + step;
    all[Math.min(Math.max(next, 0), all.length - 1)]?.focus();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.closest("input:not([type=checkbox]), textarea, select");
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    const row = event.target.closest("tr");
    const key = lastKey === "g" && event.key in PLACES ? `g${event.key}` : event.key;
    lastKey = event.key;
    if (key.length === 2 && key[0] === "g") {
      location.href = base + PLACES[key[1]];
    } else if (key === "j" || key === "k") {
      move(key === "j" ? 1 : -1);
    } else if (key === "Enter" && event.target === row) {
      row.querySelector("a.open")?.click();
    } else if (key === "x" && row) {
      row.querySelector("td.tick input")?.click();
    } else if (key === "/") {
      document.getElementById("search").focus();
    } else if (key === "f") {
      freezer.click();
    } else if (key === "?") {
      document.getElementById("keys").showModal();
    } else {
      return;
    }
    event.preventDefault();
  });

  // Colours

  const theme = document.getElementById("theme");
  const root = document.documentElement;
  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => (theme.textContent = isDark() ? "Light" : "Dark");
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("pgq-theme", root.dataset.theme);
    } catch {
      // It holds for this page.
    }
    label();
    drawCharts(true);
  });
  theme.hidden = false;
  label();

  // Charts

  const charts = new Map();
  const placesSeen = new WeakSet();
  let drawnAt = 0;

  function colour(name) {
    const probe = document.createElement("i");
    probe.className = name;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  const clock = (seconds) =>
    seconds === null ? "" : new Date(seconds * 1000).toLocaleTimeString([], { hourCycle: "h23" });

  function draw(place, data) {
    const axis = { stroke: colour("c-muted"), grid: { stroke: colour("c-line"), width: 1 }, ticks: { show: false } };
    const colours = place.dataset.colours.split(",");
    const labels = place.dataset.labels.split(",");
    const least = place.dataset.series === "times" ? 0.001 : 1;
    place.classList.add("drawn");
    return new uPlot(
      {
        width: place.clientWidth,
        height: 160,
        legend: { live: false },
        cursor: { drag: { x: false, y: false } },
        axes: [{ ...axis, space: 80, values: (_, times) => times.map(clock) }, { ...axis, size: 56 }],
        scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, least) * 1.08] } },
        series: [
          {},
          ...labels.map((name, i) => ({ label: name, stroke: colour(colours[i]), width: 1.5, spanGaps: true })),
        ],
      },
      data,
      place,
    );
  }

  async function drawCharts(anew = false) {
    const places = [...document.querySelectorAll(".chart")];
    // A chart that has come with new data is drawn at once: the next change may be long in coming.
    const isNew = places.some((place) => !placesSeen.has(place));
    for (const place of places) placesSeen.add(place);
    if (!places.length || (!anew && !isNew && Date.now() - drawnAt < CHARTS_EVERY)) return;
    if (typeof uPlot === "undefined") {
      // What was loaded was another page: that the queue is not there, for example.
      if (!document.querySelector('script[src*="uPlot"]')) location.reload();
      return;
    }
    drawnAt = Date.now();
    const name = new URL(location.href).searchParams.get("name");
    const answer = await fetch(`${base}/series?${new URLSearchParams({ name })}`);
    if (!answer.ok) return;
    const series = await answer.json();
    for (const place of places) {
      const data = series[place.dataset.series];
      const old = charts.get(place.id);
      if (old && !anew && place.contains(old.root)) {
        old.setData(data);
        continue;
      }
      old?.destroy();
      charts.delete(place.id);
      if (data[0].length) charts.set(place.id, draw(place, data));
    }
  }
  addEventListener("resize", () => {
    for (const [id, chart] of charts) {
      const place = document.getElementById(id);
      if (place) chart.setSize({ width: place.clientWidth, height: 160 });
    }
  });

  listen();
  showAll();
  drawCharts(true);
})();
