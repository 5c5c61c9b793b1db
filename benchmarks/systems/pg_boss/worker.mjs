// pg-boss's worker with its listener, on the queue whose jobs notify it; draining in bursts. With
// groups one of each at a time, and polling as often as it can: a batch is rarely full then.

import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.PEERS, "package.json"));
const { PgBoss } = require("pg-boss");

const boss = new PgBoss({
    host: process.env.PGHOST,
    port: Number(process.env.PGPORT),
    user: process.env.PGUSER,
    password: process.env.PGPASSWORD,
    database: process.env.PGDATABASE,
    useListenNotify: true,
});
boss.on("error", (error) => {
    throw error;
});

await boss.start();
const [width, step] = process.argv.slice(3).map(Number);
const groups = process.argv[5] ? { groupConcurrency: 1, pollingIntervalSeconds: 0.5 } : {};
let number = 0;
const bench = async (jobs) => {
    for (const _ of jobs) {
        number += 1;
        if (number % (step ?? 1) === 0) {
            console.log(Number(process.hrtime.bigint()) / 1e9);
        }
    }
};
if (width) {
    await boss.work("bench", { batchSize: width, burstWhenBatchFull: true, ...groups }, bench);
} else {
    await boss.work("notified", bench);
}
console.log("ready");
