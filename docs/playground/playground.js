// The element <pgq-playground>: PostgreSQL with pgq, a producer, two consumers and their jobs.

import { Consumer } from "./consumer.js";
import { Database } from "./database.js";
import { button, element } from "./dom.js";
import { JobTable, SELECT_JOBS } from "./jobs.js";
import { Panel } from "./panel.js";

const PRODUCER = {
    "Enqueue": `SELECT pgq_enqueue('{"seconds": 3}')`,
    "Enqueue ten": `SELECT pgq_enqueue_many(array_fill(jsonb '{"seconds": 1}', '{10}'))`,
    "Enqueue with priority 9": `SELECT pgq_enqueue('{"seconds": 1}', priority => 9)`,
    "Enqueue one that fails twice": `SELECT pgq_enqueue('{"seconds": 1, "fails": 2}')`,
};
const CONSUMERS = ["ann", "bob"];
const LISTING = "Statements, the last one first, without the dequeues that found no job";
const REFRESH_MS = 200;
const STATEMENTS_SHOWN = 100;

class Playground extends HTMLElement {
    #database;
    #consumers = [];
    #status = element("p", { className: "pgq-status", role: "status" });
    #statements = [];
    #listing = element("pre", {
        className: "pgq-statements", tabIndex: 0, role: "region", ariaLabel: LISTING,
    });

    connectedCallback() {
        const start = button("Start PostgreSQL", async () => {
            start.disabled = true;
            await this.#start().catch((error) => this.#fail(error));
            start.disabled = false;
        });
        this.replaceChildren(this.#status, start);
    }

    disconnectedCallback() {
        this.#consumers.forEach((consumer) => consumer.crash());
        this.#database?.close();
    }

    async #start() {
        this.#tell("Starting PostgreSQL …");
        this.#database = new Database();
        await this.#database.ready;
        await this.#query("producer", "CREATE EXTENSION pgq");
        const [{ pgq, server }] = await this.#database.query(
            "SELECT pgq_version() AS pgq, current_setting('server_version') AS server",
        );
        this.#consumers = CONSUMERS.map((name) => this.#makeConsumer(name));
        const panels = this.#consumers.map((consumer) => new Panel(consumer));
        const jobs = new JobTable();
        this.replaceChildren(
            this.#status,
            this.#makeProducer(),
            element("div", { className: "pgq-consumers" }, ...panels.map(({ node }) => node)),
            jobs.node,
            element("p", {}, `${LISTING}:`),
            this.#listing,
        );
        this.#tell(`pgq ${pgq} runs in PostgreSQL ${server}.`);
        this.#consumers.forEach((consumer) => consumer.start());
        await this.#refresh([jobs, ...panels]);
    }

    async #refresh(views) {
        while (this.isConnected) {
            const rows = await this.#database.query(SELECT_JOBS);
            views.forEach((view) => view.show(rows));
            await new Promise((resolve) => { setTimeout(resolve, REFRESH_MS); });
        }
    }

    #makeProducer() {
        const buttons = Object.entries(PRODUCER).map(([label, statement]) =>
            button(label, () => this.#enqueue(statement).catch((error) => this.#fail(error))),
        );
        return element("fieldset", {}, element("legend", {}, "Producer"), ...buttons);
    }

    async #enqueue(statement) {
        const ids = (await this.#query("producer", statement)).flatMap(Object.values);
        const what = ids.length === 1 ? `Job ${ids[0]} is` : `${ids.length} jobs are`;
        this.#tell(`${what} enqueued.`);
    }

    #makeConsumer(name) {
        return new Consumer(name, {
            query: (statement) => this.#query(name, statement),
            onClaim: ({ id }) => this.#tellTakeOver(id, name),
            onLost: ({ id }) => this.#tell(`${name} has lost the lease of job ${id}.`),
            onError: (error) => this.#fail(error),
        });
    }

    #tellTakeOver(id, name) {
        const before = this.#consumers.find(({ job }) => job?.id === id);
        if (before) {
            before.job = null;
            this.#tell(`${name} takes job ${id} over from ${before.name}.`);
        }
    }

    // Runs a statement and lists it, unless it is a dequeue that found no job.
    async #query(client, statement) {
        const rows = await this.#database.query(statement);
        if (rows.length > 0 || !statement.includes("pgq_dequeue")) {
            const answer = rows.length === 1 ? JSON.stringify(rows[0]) : `${rows.length} rows`;
            this.#statements.unshift(`-- ${client}\n${statement};\n-- ${answer}\n`);
            this.#statements.splice(STATEMENTS_SHOWN);
            this.#listing.textContent = this.#statements.join("\n");
        }
        return rows;
    }

    #tell(text) {
        this.#status.textContent = text;
    }

    #fail({ message }) {
        this.#tell(`That did not work: ${message}`);
    }
}

customElements.define("pgq-playground", Playground);
