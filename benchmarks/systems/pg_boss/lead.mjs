// Sets up pg-boss, lets it do one of each of its operations, or fills its queue.

import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.PEERS, "package.json"));
const { PgBoss } = require("pg-boss");

const CHUNK = 10_000;
const SIZES = [1, 10, 100];

const [verb, payload, count] = process.argv.slice(2);
const data = JSON.parse(payload);
const boss = new PgBoss({
    host: process.env.PGHOST,
    port: Number(process.env.PGPORT),
    user: process.env.PGUSER,
    password: process.env.PGPASSWORD,
    database: process.env.PGDATABASE,
    supervise: false,
    schedule: false,
});
boss.on("error", (error) => {
    throw error;
});

await boss.start();
const verbs = { install, record, fill };
await verbs[verb]();
await boss.stop({ graceful: false });

async function install() {
    await boss.createQueue("bench");
    await boss.createQueue("notified", { notify: true });
}

async function record() {
    await boss.send("bench", data);
    const others = SIZES.reduce((sum, size) => sum + size) - 1;
    await boss.insert("bench", Array.from({ length: others }, () => ({ data })));
    for (const batchSize of SIZES) {
        const jobs = await boss.fetch("bench", { batchSize });
        await boss.complete("bench", jobs);
    }
    await boss.send("notified", data);
    await boss.complete("notified", await boss.fetch("notified"));
}

async function fill() {
    for (let left = Number(count); left > 0; left -= CHUNK) {
        const length = Math.min(CHUNK, left);
        await boss.insert("bench", Array.from({ length }, () => ({ data })));
    }
}
