// pgq from Node.js, with pg: one TAP line for each step in the life of jobs.
// PGHOST and so on lead to the database. PGQ_LISTEN=off is for poolers.

import assert from "node:assert";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual as isEqual } from "node:util";
import pg from "pg";

const QUEUE = "client-node";
const HEARTBEAT = "SELECT pgq_heartbeat($1::bigint, $2::bigint, '1 minute')";
const COMPLETE = "SELECT pgq_complete($1::bigint, $2::bigint, $3::jsonb)";
const FAIL = "SELECT pgq_fail($1::bigint, $2::bigint, $3, retry_in => '0')";
const POP = "SELECT id FROM pgq_pop(1, $1)";
const WAIT = "SELECT extract(epoch FROM pgq_wait($1::text[]))::float8";
const JOB = "SELECT * FROM pgq_jobs WHERE id = $1::bigint";
const CLAIM = "SELECT * FROM pgq_claim($1::bigint)";

async function rows(client, text, ...values) {
    return (await client.query(text, values)).rows;
}

async function value(client, text, ...values) {
    const [row] = await rows(client, text, ...values);
    return Object.values(row)[0];
}

// Adds a row and its job, in the caller's transaction: both commit, or neither does.
async function signUp(client, email) {
    await client.query("INSERT INTO signup VALUES ($1)", [email]);
    const text = "SELECT pgq_enqueue($1::jsonb, $2, priority => 5)";
    return value(client, text, JSON.stringify({ to: [email] }), QUEUE);
}

async function enqueue(client, ...to) {
    const text = "SELECT pgq_enqueue($1::jsonb, $2, max_attempts => 2)";
    return value(client, text, JSON.stringify({ to }), QUEUE);
}

async function dequeue(client, batch = 1, lease = "30 seconds") {
    return rows(client, "SELECT * FROM pgq_dequeue($1, $2::interval, $3)", batch, lease, QUEUE);
}

// Does a job in parts, and renews its lease before each.
async function deliver(client, job) {
    for (const address of job.payload.to) {
        if ((await value(client, HEARTBEAT, job.id, job.token)) === null) {
            throw new Error("the lease is lost: another worker has the job");
        }
        if (!address.includes("@")) {
            throw new Error(`not an address: ${address}`);
        }
    }
    return { sent: job.payload.to.length };
}

// Claims and settles jobs until there are none.
async function consume(client) {
    for (;;) {
        const [job] = await dequeue(client);
        if (job === undefined) {
            return;
        }
        await deliver(client, job).then(
            (result) => value(client, COMPLETE, job.id, job.token, JSON.stringify(result)),
            (error) => value(client, FAIL, job.id, job.token, error.message),
        );
    }
}

async function sqlstate(client, text, ...values) {
    return rows(client, text, ...values).then(() => null, (error) => error.code);
}

let number = 0;

function ok(name, passed) {
    number += 1;
    if (!passed) {
        throw new Error(`not ok ${number} - ${name}`);
    }
    console.log(`ok ${number} - ${name}`);
}

async function claims(db, other) {
    await db.query("BEGIN");
    const kept = await signUp(db, "ada@node.example");
    await db.query("COMMIT");
    await db.query("BEGIN");
    await signUp(db, "bob@node.example");
    await db.query("ROLLBACK");
    const emails = await rows(db, "SELECT * FROM signup WHERE email LIKE '%@node.example'");
    const jobs = await dequeue(db, 10);
    const seen = jobs.map((job) => [job.id, job.priority, job.payload]);
    await value(db, COMPLETE, jobs[0].id, jobs[0].token, null);
    const expected = [[kept, 5, { to: ["ada@node.example"] }]];
    ok("enqueue commits with its transaction", isEqual(seen, expected) && emails.length === 1);

    const enqueued = new Set();
    for (let n = 0; n < 10; n += 1) {
        enqueued.add(await enqueue(db, `${n}@node.example`));
    }
    for (const client of [db, other]) {
        await client.query("BEGIN");
        await client.query("SET LOCAL lock_timeout = '1s'");
    }
    const mine = await dequeue(db, 3);
    const theirs = await dequeue(other, 3);
    mine.push(...(await dequeue(db, 10)));
    await db.query("COMMIT");
    await other.query("COMMIT");
    const ids = [...mine, ...theirs].map((job) => job.id);
    const tokens = [...mine, ...theirs].map((job) => job.token);
    await rows(db, "SELECT pgq_complete($1::bigint[], $2::bigint[])", ids, tokens);
    const shared = mine.length === 7 && theirs.length === 3 && isEqual(new Set(ids), enqueued);
    ok("two consumers claim side by side", shared && (await dequeue(db)).length === 0);

    await enqueue(db, "ada@node.example");
    const [job] = await dequeue(db);
    const expiry = await value(db, HEARTBEAT, job.id, job.token);
    await value(db, COMPLETE, job.id, job.token, null);
    ok("a heartbeat renews the lease", expiry > job.lease_expires_at);

    await enqueue(db, "ada@node.example");
    const [old] = await dequeue(db, 1, "1 millisecond");
    const deadline = Date.now() + 10_000;
    let again = [];
    while (again.length === 0) {
        assert(Date.now() < deadline, "the job was not claimed again");
        again = await dequeue(other);
    }
    const answers = [
        await value(db, HEARTBEAT, old.id, old.token),
        await value(db, COMPLETE, old.id, old.token, null),
        await value(db, FAIL, old.id, old.token, "too late"),
        await value(other, COMPLETE, again[0].id, again[0].token, null),
    ];
    ok("a stale receipt changes nothing", isEqual(answers, [null, false, null, true]));
}

async function outcomes(db, other) {
    let id = await enqueue(db, "ada@node.example", "bob@node.example");
    await consume(db);
    let [job] = await rows(other, JOB, id);
    ok("complete keeps the result", isEqual([job.state, job.result], ["completed", { sent: 2 }]));

    id = await enqueue(db, "nobody");
    await consume(db);
    [job] = await rows(other, JOB, id);
    const dead = isEqual([job.state, job.last_error], ["dead", "not an address: nobody"]);
    await value(other, "SELECT pgq_retry($1::bigint)", id);
    [job] = await dequeue(db);
    const back = job.id === id && (await value(db, COMPLETE, id, job.token, null));
    ok("fail ends dead, retry brings back", dead && back);

    id = await enqueue(db, "ada@node.example");
    await db.query("BEGIN");
    const tried = await value(db, POP, QUEUE);
    await db.query("ROLLBACK");
    await db.query("BEGIN");
    const done = await value(db, POP, QUEUE);
    await db.query("COMMIT");
    const gone = (await dequeue(other)).length === 0;
    ok("pop ends with its transaction", tried === id && done === id && gone);

    id = await enqueue(db, "ada@node.example");
    [job] = await rows(db, CLAIM, id);
    const held = await sqlstate(other, CLAIM, id);
    await value(db, COMPLETE, id, job.token, null);
    ok("a held job is refused with 55P03", held === "55P03");
    const unknown = await sqlstate(db, "SELECT pgq_enqueue('{}', 'no such queue')");
    ok("an unknown queue is refused with 42704", unknown === "42704");
}

async function waking(db, other) {
    const bell = new AbortController();
    db.on("notification", () => bell.abort());
    const channel = await value(db, "SELECT pgq_channel($1)", QUEUE);
    await db.query(`LISTEN ${pg.escapeIdentifier(channel)}`);
    let seconds;
    while (!bell.signal.aborted && (seconds = await value(db, WAIT, [QUEUE])) > 0) {
        if (seconds > 1) {
            await enqueue(other, "eve@node.example"); // somebody does, while this session sleeps
        }
        await sleep(seconds * 1000, null, { signal: bell.signal }).catch(() => {});
    }
    await db.query("SELECT pgq_wake()");
    const jobs = await dequeue(db);
    ok("a sleeping consumer is woken", bell.signal.aborted && jobs.length === 1);
}

const [db, other] = [new pg.Client(), new pg.Client()];
await Promise.all([db.connect(), other.connect()]);
await db.query("CREATE TABLE IF NOT EXISTS signup (email text)");
await db.query("SELECT pgq_create_queue($1)", [QUEUE]);
await claims(db, other);
await outcomes(db, other);
if (process.env.PGQ_LISTEN !== "off") {
    await waking(db, other);
}
console.log(`1..${number}`);
await Promise.all([db.end(), other.end()]);
