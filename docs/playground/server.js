// The worker in which PostgreSQL runs: takes a statement, answers with its rows or its error.

import { PGlite } from "./built/pglite/index.js";

const pgq = {
    name: "pgq",
    setup: async () => ({ bundlePath: new URL("built/pgq.tar.gz", import.meta.url) }),
};
const database = await PGlite.create({ extensions: { pgq } });

self.onmessage = async ({ data: statement, ports: [answer] }) => {
    try {
        const { rows } = await database.query(statement);
        answer.postMessage({ rows });
    } catch (error) {
        answer.postMessage({ error: error.message });
    }
};
self.postMessage("ready");
