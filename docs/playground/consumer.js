// A consumer as any client could write it: claim, renew the lease, complete or fail.

export const LEASE_SECONDS = 3;
const HEARTBEAT_MS = 1000;
const POLL_MS = 250;

export class Consumer {
    job = null; // the one it works on, or did when it crashed, until another consumer has it
    #life = null;
    #frozen = null;

    // `query` runs a statement; `onClaim` is told of a job before the consumer has it, `onLost` of
    // one whose lease was lost, `onError` of a statement that failed.
    constructor(name, { query, onClaim, onLost, onError }) {
        Object.assign(this, { name, query, onClaim, onLost, onError });
    }

    get isRunning() {
        return this.#life !== null;
    }

    get isFrozen() {
        return this.#frozen !== null;
    }

    start() {
        const life = new AbortController();
        this.job = null;
        this.#life = life;
        this.#run(life.signal).catch((error) => life.signal.aborted || this.onError(error));
    }

    // Ends the consumer wherever it is. It gives nothing back: the lease has to expire.
    crash() {
        this.#life?.abort();
        this.#life = null;
        this.thaw();
    }

    // Stops the consumer's time, as the pause of a process or of its whole machine does.
    freeze() {
        this.#frozen = Promise.withResolvers();
    }

    thaw() {
        this.#frozen?.resolve();
        this.#frozen = null;
    }

    async #run(signal) {
        const claim = "SELECT id, token, attempt, payload"
            + ` FROM pgq_dequeue(1, '${LEASE_SECONDS} seconds', worker => '${this.name}')`;
        for (;;) {
            const [job] = await this.#query(claim, signal);
            if (job === undefined) {
                await this.#pause(POLL_MS, signal);
                continue;
            }
            this.onClaim(job);
            this.job = job;
            await this.#work(job, signal);
            this.job = null;
        }
    }

    async #work(job, signal) {
        const receipt = `${job.id}, ${job.token}`;
        const { seconds, fails = 0 } = job.payload;
        for (let second = 1; second <= seconds; second += 1) {
            await this.#pause(HEARTBEAT_MS, signal);
            const heartbeat = `SELECT pgq_heartbeat(${receipt}) AS expiry`;
            const [{ expiry }] = await this.#query(heartbeat, signal);
            if (expiry === null) {
                this.onLost(job);
                return;
            }
        }
        const isFailing = job.attempt <= fails;
        const call = isFailing ? `pgq_fail(${receipt}, 'SMTP 451')` : `pgq_complete(${receipt})`;
        await this.#query(`SELECT ${call}`, signal);
    }

    async #query(statement, signal) {
        const rows = await this.query(statement);
        signal.throwIfAborted();
        return rows;
    }

    async #pause(milliseconds, signal) {
        await new Promise((resolve) => { setTimeout(resolve, milliseconds); });
        await this.#frozen?.promise;
        signal.throwIfAborted();
    }
}
