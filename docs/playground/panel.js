// What shows a consumer, and its two buttons.

import { LEASE_SECONDS } from "./consumer.js";
import { button, element } from "./dom.js";

export class Panel {
    #consumer;
    #doing = element("p");
    #lease = element("progress", { max: LEASE_SECONDS, value: 0 });
    #crash;
    #freeze;

    constructor(consumer) {
        this.#consumer = consumer;
        this.#crash = button("", () => (consumer.isRunning ? consumer.crash() : consumer.start()));
        this.#freeze = button("", () => (consumer.isFrozen ? consumer.thaw() : consumer.freeze()));
        this.node = element(
            "fieldset",
            {},
            element("legend", {}, `Consumer ${consumer.name}`),
            this.#doing,
            element("label", {}, "Lease ", this.#lease),
            element("p", {}, this.#crash, " ", this.#freeze),
        );
    }

    show(jobs) {
        const { name, job, isRunning, isFrozen } = this.#consumer;
        const held = jobs.find(
            ({ id, state, worker }) => id === job?.id && state === "active" && worker === name,
        );
        this.#doing.textContent = describe(this.#consumer, held);
        this.#lease.value = Math.max(held?.lease ?? 0, 0);
        this.#crash.textContent = isRunning ? "Crash" : "Restart";
        this.#freeze.textContent = isFrozen ? "Thaw" : "Freeze";
        this.#freeze.disabled = !isRunning;
    }
}

function describe({ job, isRunning, isFrozen }, held) {
    if (isRunning && !isFrozen) {
        return job ? `works on job ${job.id}, attempt ${job.attempt}` : "looks for a job";
    }
    const state = isRunning ? "frozen" : "crashed";
    return held ? `${state}, holds job ${held.id}` : state;
}
