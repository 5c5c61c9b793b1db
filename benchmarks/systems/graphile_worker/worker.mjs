// Graphile Worker's worker, with its default options.

import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.PEERS, "package.json"));
const { Logger, run } = require("graphile-worker");
const { Pool } = require("pg");

const bench = async () => console.log(Number(process.hrtime.bigint()) / 1e9);
const logger = new Logger(() => () => {});
const runner = await run({
    preset: { worker: { pgPool: new Pool(), logger } },
    taskList: { bench },
});
console.log("ready");
await runner.promise;
