// Sets up Graphile Worker, lets it do one of each of its operations, or fills its queue.

import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.PEERS, "package.json"));
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { Pool } = require("pg");

const CHUNK = 10_000;

const [verb, payload, count] = process.argv.slice(2);
const pgPool = new Pool();
const logger = new Logger(() => () => {});
const preset = (worker) => ({ worker: { pgPool, logger, ...worker } });
const jobs = (length) =>
    Array.from({ length }, () => ({ identifier: "bench", payload: JSON.parse(payload) }));

const utils = await makeWorkerUtils({ preset: preset({}) });
const verbs = { install: () => utils.migrate(), record, fill };
await verbs[verb]();
await utils.release();
await pgPool.end();

async function record() {
    await utils.addJob("bench", JSON.parse(payload));
    await work(1, preset({ concurrentJobs: 1 }));
    for (const size of [10, 100]) {
        await utils.addJobs(jobs(size));
        const localQueue = { size };
        await work(size, preset({ concurrentJobs: 10, localQueue, completeJobBatchDelay: 0 }));
    }
}

/** Let a worker run until it has done that many jobs. */
async function work(jobCount, workerPreset) {
    let left = jobCount;
    let runner;
    const done = new Promise((resolve) => {
        const bench = async () => {
            left -= 1;
            if (left === 0) resolve();
        };
        runner = run({ preset: workerPreset, taskList: { bench }, noHandleSignals: true });
    });
    const started = await runner;
    await done;
    await started.stop();
}

async function fill() {
    for (let left = Number(count); left > 0; left -= CHUNK) {
        await utils.addJobs(jobs(Math.min(CHUNK, left)));
    }
}
