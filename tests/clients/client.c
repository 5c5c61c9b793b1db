/*
 * pgq from C, with libpq: one TAP line for each step in the life of jobs. The server writes and
 * reads the JSON. PGHOST and so on lead to the database. PGQ_LISTEN=off is for poolers.
 */

#include <libpq-fe.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE "client-c"
#define HEARTBEAT "SELECT pgq_heartbeat($1::bigint, $2::bigint, '1 minute')"
#define COMPLETE "SELECT pgq_complete($1::bigint, $2::bigint, jsonb_build_object('sent', $3::int))"
#define COMPLETE_MANY "SELECT count(*) FROM pgq_complete($1::bigint[], $2::bigint[])"
#define FAIL "SELECT pgq_fail($1::bigint, $2::bigint, $3, retry_in => '0')"
#define POP "SELECT id FROM pgq_pop(1, $1)"
#define WAIT "SELECT ceil(extract(epoch FROM pgq_wait(ARRAY[$1])) * 1000)::int"
#define LATER "SELECT $1::timestamptz > $2::timestamptz"
#define OUTCOME "SELECT concat_ws(', ', state, result, last_error) FROM pgq_jobs WHERE id = $1"

/* Runs a query with one or more parameters, all of them strings or NULL. */
#define RUN(db, query, ...) \
    PQexecParams(db, query, sizeof(STRINGS(__VA_ARGS__)) / sizeof(char *), NULL, \
                 STRINGS(__VA_ARGS__), NULL, NULL, 0)
#define STRINGS(...) (const char *const[]){__VA_ARGS__}

enum { MAX_JOBS = 10, MAX_TEXT = 1024 };

typedef struct {
    bool is_null;
    char text[MAX_TEXT];
} Value;

typedef struct {
    Value id, token, priority, payload, expiry;
} Job;

static int number = 0;

static void fatal(const char *message)
{
    fprintf(stderr, "%s\n", message);
    exit(EXIT_FAILURE);
}

static bool is_same(const char *a, const char *b)
{
    return a != NULL && strcmp(a, b) == 0;
}

static PGresult *checked(PGresult *result)
{
    if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
        fatal(PQresultErrorMessage(result));
    return result;
}

static void command(PGconn *db, const char *query)
{
    PQclear(checked(PQexec(db, query)));
}

static Value cell(const PGresult *result, int row, int column)
{
    Value value = {.is_null = PQgetisnull(result, row, column)};

    snprintf(value.text, MAX_TEXT, "%s", PQgetvalue(result, row, column));
    return value;
}

/* Returns the only value of a result, and frees it. */
static Value value(PGresult *result)
{
    Value answer = cell(checked(result), 0, 0);

    PQclear(result);
    return answer;
}

static bool is_true(PGresult *result)
{
    return is_same(value(result).text, "t");
}

/* Adds a row and its job, in the caller's transaction: both commit, or neither does. */
static Value sign_up(PGconn *db, const char *email)
{
    const char *query = "SELECT pgq_enqueue(jsonb_build_object('to', $1::text), $2, priority => 5)";

    PQclear(checked(RUN(db, "INSERT INTO signup VALUES ($1)", email)));
    return value(RUN(db, query, email, QUEUE));
}

static Value enqueue(PGconn *db, const char *to)
{
    const char *query =
        "SELECT pgq_enqueue(jsonb_build_object('to', $1::text), $2, max_attempts => 2)";

    return value(RUN(db, query, to, QUEUE));
}

/* Claims jobs, and returns how many. */
static int dequeue(PGconn *db, const char *batch, const char *lease, Job jobs[])
{
    const char *query = "SELECT id, token, priority, payload, lease_expires_at"
                        "  FROM pgq_dequeue($1, $2::interval, $3)";
    PGresult *result = checked(RUN(db, query, batch, lease, QUEUE));
    int count = PQntuples(result);

    for (int i = 0; i < count; i++)
        jobs[i] = (Job){cell(result, i, 0), cell(result, i, 1), cell(result, i, 2),
                        cell(result, i, 3), cell(result, i, 4)};
    PQclear(result);
    return count;
}

static bool dequeue_one(PGconn *db, const char *lease, Job *job)
{
    return dequeue(db, "1", lease, job) == 1;
}

static bool complete(PGconn *db, const Job *job, const char *sent)
{
    return is_true(RUN(db, COMPLETE, job->id.text, job->token.text, sent));
}

static Value heartbeat(PGconn *db, const Job *job)
{
    return value(RUN(db, HEARTBEAT, job->id.text, job->token.text));
}

/* Does a job, and renews its lease meanwhile. Returns what went wrong, or NULL. */
static const char *deliver(PGconn *db, const Job *job)
{
    if (heartbeat(db, job).is_null)
        return "the lease is lost: another worker has the job";
    return strchr(job->payload.text, '@') == NULL ? "not an address" : NULL;
}

/* Claims and settles jobs until there are none. */
static void consume(PGconn *db)
{
    Job job;

    while (dequeue_one(db, "30 seconds", &job)) {
        const char *error = deliver(db, &job);

        if (error == NULL)
            complete(db, &job, "1");
        else
            value(RUN(db, FAIL, job.id.text, job.token.text, error));
    }
}

static bool is_refused(PGresult *result, const char *sqlstate)
{
    bool answer = is_same(PQresultErrorField(result, PG_DIAG_SQLSTATE), sqlstate);

    PQclear(result);
    return answer;
}

static void ok(const char *name, bool passed)
{
    printf(passed ? "ok %d - %s\n" : "not ok %d - %s\n", ++number, name);
    fflush(stdout);
    if (!passed)
        exit(EXIT_FAILURE);
}

static void claims(PGconn *db, PGconn *other)
{
    Job jobs[3 * MAX_JOBS], job, again;
    char ids[MAX_TEXT] = "", tokens[MAX_TEXT] = "";
    Value id, emails, completed;
    bool passed;
    int mine, theirs, rest;
    time_t deadline;

    command(db, "BEGIN");
    id = sign_up(db, "ada@c.example");
    command(db, "COMMIT");
    command(db, "BEGIN");
    sign_up(db, "bob@c.example");
    command(db, "ROLLBACK");
    emails = value(PQexec(db, "SELECT count(*) FROM signup WHERE email LIKE '%@c.example'"));
    passed = dequeue(db, "10", "30 seconds", &job) == 1 && complete(db, &job, NULL);
    passed = passed && is_same(job.id.text, id.text) && is_same(job.priority.text, "5");
    passed = passed && is_same(job.payload.text, "{\"to\": \"ada@c.example\"}");
    ok("enqueue commits with its transaction", passed && is_same(emails.text, "1"));

    for (int i = 0; i < MAX_JOBS; i++)
        enqueue(db, "ada@c.example");
    command(db, "BEGIN");
    command(db, "SET LOCAL lock_timeout = '1s'");
    command(other, "BEGIN");
    command(other, "SET LOCAL lock_timeout = '1s'");
    mine = dequeue(db, "3", "30 seconds", jobs);
    theirs = dequeue(other, "3", "30 seconds", jobs + mine);
    rest = dequeue(db, "10", "30 seconds", jobs + mine + theirs);
    command(db, "COMMIT");
    command(other, "COMMIT");
    for (int i = 0; i < mine + theirs + rest; i++) {
        strcat(strcat(ids, i == 0 ? "{" : ","), jobs[i].id.text);
        strcat(strcat(tokens, i == 0 ? "{" : ","), jobs[i].token.text);
    }
    completed = value(RUN(db, COMPLETE_MANY, strcat(ids, "}"), strcat(tokens, "}")));
    passed = mine == 3 && theirs == 3 && rest == 4 && is_same(completed.text, "10");
    ok("two consumers claim side by side", passed && !dequeue_one(db, "30 seconds", &job));

    enqueue(db, "ada@c.example");
    passed = dequeue_one(db, "30 seconds", &job);
    passed = passed && is_true(RUN(db, LATER, heartbeat(db, &job).text, job.expiry.text));
    ok("a heartbeat renews the lease", passed && complete(db, &job, NULL));

    enqueue(db, "ada@c.example");
    passed = dequeue_one(db, "1 millisecond", &job);
    deadline = time(NULL) + 10;
    while (!dequeue_one(other, "30 seconds", &again))
        if (time(NULL) > deadline)
            fatal("the job was not claimed again");
    passed = passed && heartbeat(db, &job).is_null && !complete(db, &job, NULL);
    passed = passed && value(RUN(db, FAIL, job.id.text, job.token.text, "too late")).is_null;
    ok("a stale receipt changes nothing", passed && complete(other, &again, NULL));
}

static void outcomes(PGconn *db, PGconn *other)
{
    Job job;
    Value id, tried, done;
    bool passed;

    id = enqueue(db, "ada@c.example");
    consume(db);
    passed = is_same(value(RUN(other, OUTCOME, id.text)).text, "completed, {\"sent\": 1}");
    ok("complete keeps the result", passed);

    id = enqueue(db, "nobody");
    consume(db);
    passed = is_same(value(RUN(other, OUTCOME, id.text)).text, "dead, not an address");
    passed = passed && is_true(RUN(other, "SELECT pgq_retry($1)", id.text));
    passed = passed && dequeue_one(db, "30 seconds", &job) && is_same(job.id.text, id.text);
    ok("fail ends dead, retry brings back", passed && complete(db, &job, NULL));

    id = enqueue(db, "ada@c.example");
    command(db, "BEGIN");
    tried = value(RUN(db, POP, QUEUE));
    command(db, "ROLLBACK");
    command(db, "BEGIN");
    done = value(RUN(db, POP, QUEUE));
    command(db, "COMMIT");
    passed = is_same(tried.text, id.text) && is_same(done.text, id.text);
    ok("pop ends with its transaction", passed && !dequeue_one(other, "30 seconds", &job));

    id = enqueue(db, "ada@c.example");
    job.token = value(RUN(db, "SELECT token FROM pgq_claim($1)", id.text));
    passed = is_refused(RUN(other, "SELECT token FROM pgq_claim($1)", id.text), "55P03");
    job.id = id;
    ok("a held job is refused with 55P03", passed && complete(db, &job, NULL));
    passed = is_refused(RUN(db, "SELECT pgq_enqueue('{}', $1)", "no such queue"), "42704");
    ok("an unknown queue is refused with 42704", passed);
}

/* Waits for a notification, and tells whether one came in time. */
static bool is_notified(PGconn *db, int milliseconds)
{
    struct pollfd socket = {.fd = PQsocket(db), .events = POLLIN};
    PGnotify *notification = PQnotifies(db);
    bool answer;

    if (notification == NULL && poll(&socket, 1, milliseconds) > 0 && PQconsumeInput(db))
        notification = PQnotifies(db);
    answer = notification != NULL;
    PQfreemem(notification);
    return answer;
}

static void waking(PGconn *db, PGconn *other)
{
    const char *listen = "SELECT 'LISTEN ' || quote_ident(pgq_channel($1))";
    bool woken = false;
    int milliseconds;
    Job job;

    command(db, value(RUN(db, listen, QUEUE)).text);
    while (!woken && (milliseconds = atoi(value(RUN(db, WAIT, QUEUE)).text)) > 0) {
        if (milliseconds > 1000)
            enqueue(other, "eve@c.example"); /* somebody does, while this session sleeps */
        woken = is_notified(db, milliseconds);
    }
    command(db, "SELECT pgq_wake()");
    ok("a sleeping consumer is woken", woken && dequeue_one(db, "30 seconds", &job));
}

int main(void)
{
    PGconn *db = PQconnectdb(""), *other = PQconnectdb("");

    if (PQstatus(db) != CONNECTION_OK || PQstatus(other) != CONNECTION_OK)
        fatal(PQerrorMessage(PQstatus(db) == CONNECTION_OK ? other : db));
    command(db, "CREATE TABLE IF NOT EXISTS signup (email text)");
    value(RUN(db, "SELECT pgq_create_queue($1)", QUEUE));
    claims(db, other);
    outcomes(db, other);
    if (!is_same(getenv("PGQ_LISTEN"), "off"))
        waking(db, other);
    printf("1..%d\n", number);
    PQfinish(db);
    PQfinish(other);
    return EXIT_SUCCESS;
}
