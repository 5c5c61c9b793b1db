// The table of jobs.

import { element } from "./dom.js";

export const SELECT_JOBS = `
    SELECT id, priority, state, attempt, worker, last_error,
           extract(epoch FROM lease_expires_at - clock_timestamp())::float8 AS lease,
           extract(epoch FROM run_at - clock_timestamp())::float8 AS due
      FROM pgq_jobs
     ORDER BY finished_at DESC NULLS FIRST, priority DESC, id
     LIMIT 15`;

const HEADINGS = ["Job", "Priority", "State", "Attempt", "Worker", "Next", "Last error"];

export class JobTable {
    #body = element("tbody");

    constructor() {
        const headings = HEADINGS.map((text) => element("th", { scope: "col" }, text));
        const table = element(
            "table",
            { className: "pgq-table" },
            element("caption", {}, "Jobs: those that live, then the last that ended"),
            element("thead", {}, element("tr", {}, ...headings)),
            this.#body,
        );
        const region = { className: "pgq-jobs", tabIndex: 0, role: "region", ariaLabel: "Jobs" };
        this.node = element("div", region, table);
    }

    show(jobs) {
        this.#body.replaceChildren(...jobs.map(row));
    }
}

function row(job) {
    const { id, priority, state, attempt, worker, last_error: error } = job;
    const cells = [priority, state, attempt, worker ?? "", next(job), error ?? ""];
    const node = element(
        "tr",
        {},
        element("th", { scope: "row" }, String(id)),
        ...cells.map((text) => element("td", {}, String(text))),
    );
    node.dataset.state = state;
    return node;
}

function next({ state, lease, due }) {
    if (state === "active") {
        return lease > 0 ? `lease ends in ${lease.toFixed(1)} s` : "lease has ended";
    }
    return state === "scheduled" ? `due in ${Math.max(due, 0).toFixed(1)} s` : "";
}
