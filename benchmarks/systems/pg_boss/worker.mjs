// pg-boss's worker with its listener, on the queue whose jobs notify it.

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
await boss.work("notified", async () => console.log(Number(process.hrtime.bigint()) / 1e9));
console.log("ready");
