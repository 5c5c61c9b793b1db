// Graphile Worker's worker, with its default options; draining with a local queue.

import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.PEERS, "package.json"));
const { Logger, run } = require("graphile-worker");
const { Pool } = require("pg");

const [width, step] = process.argv.slice(3).map(Number);
let number = 0;
const bench = async () => {
    number += 1;
    if (number % (step ?? 1) === 0) {
        console.log(Number(process.hrtime.bigint()) / 1e9);
    }
};
const options = width ? { concurrentJobs: 10, localQueue: { size: width + 1 } } : {};
const logger = new Logger(() => () => {});
const runner = await run({
    preset: { worker: { pgPool: new Pool(), logger, ...options } },
    taskList: { bench },
});
console.log("ready");
await runner.promise;
