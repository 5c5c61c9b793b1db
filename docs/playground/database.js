// The page's one connection to the PostgreSQL in the worker; statements run one after the other.

export class Database {
    #worker = new Worker(new URL("server.js", import.meta.url), { type: "module" });

    ready = new Promise((resolve, reject) => {
        this.#worker.onmessage = resolve;
        this.#worker.onerror = ({ message }) => reject(new Error(message || "it cannot be loaded"));
    });

    query(statement) {
        const { port1, port2 } = new MessageChannel();
        return new Promise((resolve, reject) => {
            port1.onmessage = ({ data: { rows, error } }) => {
                port1.close();
                if (error === undefined) {
                    resolve(rows);
                } else {
                    reject(new Error(error));
                }
            };
            this.#worker.postMessage(statement, [port2]);
        });
    }

    close() {
        this.#worker.terminate();
    }
}
