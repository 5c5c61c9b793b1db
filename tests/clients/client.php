<?php
// pgq from PHP, with PDO: one TAP line for each step in the life of jobs.
// PGHOST and so on lead to the database. PGQ_PREPARE=off and PGQ_LISTEN=off are for poolers.

declare(strict_types=1);

const QUEUE = 'client-php';
const HEARTBEAT = "SELECT pgq_heartbeat(?::bigint, ?::bigint, '1 minute')";
const COMPLETE = 'SELECT pgq_complete(?::bigint, ?::bigint, ?)';
const FAIL = "SELECT pgq_fail(?::bigint, ?::bigint, ?, retry_in => '0')";
const POP = 'SELECT id FROM pgq_pop(1, ?)';
const WAIT = 'SELECT extract(epoch FROM pgq_wait(ARRAY[?]))::float8';
const JOB = 'SELECT * FROM pgq_jobs WHERE id = ?';
const CLAIM = 'SELECT * FROM pgq_claim(?)';

function connect(): PDO
{
    return new PDO('pgsql:', options: [
        PDO::ATTR_DEFAULT_FETCH_MODE => PDO::FETCH_ASSOC,
        PDO::PGSQL_ATTR_DISABLE_PREPARES => getenv('PGQ_PREPARE') === 'off',
    ]);
}

function rows(PDO $db, string $query, mixed ...$parameters): array
{
    $statement = $db->prepare($query);
    $statement->execute($parameters);
    return $statement->fetchAll();
}

function value(PDO $db, string $query, mixed ...$parameters): mixed
{
    return current(rows($db, $query, ...$parameters)[0]);
}

/** Adds a row and its job, in the caller's transaction: both commit, or neither does. */
function signUp(PDO $db, string $email): int
{
    $db->prepare('INSERT INTO signup VALUES (?)')->execute([$email]);
    $query = 'SELECT pgq_enqueue(?::jsonb, ?, priority => 5)';
    return value($db, $query, json_encode(['to' => [$email]]), QUEUE);
}

function enqueue(PDO $db, string ...$to): int
{
    $query = 'SELECT pgq_enqueue(?::jsonb, ?, max_attempts => 2)';
    return value($db, $query, json_encode(['to' => $to]), QUEUE);
}

function dequeue(PDO $db, int $batch = 1, string $lease = '30 seconds'): array
{
    return rows($db, 'SELECT * FROM pgq_dequeue(?, ?::interval, ?)', $batch, $lease, QUEUE);
}

/** Does a job in parts, and renews its lease before each. */
function deliver(PDO $db, array $job): array
{
    $to = json_decode($job['payload'])->to;
    foreach ($to as $address) {
        if (value($db, HEARTBEAT, $job['id'], $job['token']) === null) {
            throw new RuntimeException('the lease is lost: another worker has the job');
        }
        if (!str_contains($address, '@')) {
            throw new InvalidArgumentException("not an address: $address");
        }
    }
    return ['sent' => count($to)];
}

/** Claims and settles jobs until there are none. */
function consume(PDO $db): void
{
    while ($jobs = dequeue($db)) {
        [$job] = $jobs;
        try {
            $result = deliver($db, $job);
        } catch (Exception $error) {
            value($db, FAIL, $job['id'], $job['token'], $error->getMessage());
            continue;
        }
        value($db, COMPLETE, $job['id'], $job['token'], json_encode($result));
    }
}

function sqlstate(PDO $db, string $query, mixed ...$parameters): ?string
{
    try {
        rows($db, $query, ...$parameters);
    } catch (PDOException $error) {
        return $error->getCode();
    }
    return null;
}

function ok(string $name, bool $passed): int
{
    static $number = 0;
    $number += 1;
    if (!$passed) {
        throw new RuntimeException("not ok $number - $name");
    }
    echo "ok $number - $name\n";
    return $number;
}

function claims(PDO $db, PDO $other): void
{
    $db->beginTransaction();
    $id = signUp($db, 'ada@php.example');
    $db->commit();
    $db->beginTransaction();
    signUp($db, 'bob@php.example');
    $db->rollBack();
    $emails = rows($db, "SELECT * FROM signup WHERE email LIKE '%@php.example'");
    [$job] = $jobs = dequeue($db, 10);
    value($db, COMPLETE, $job['id'], $job['token'], null);
    $seen = [$job['id'], $job['priority'], json_decode($job['payload'], true)];
    $kept = count($jobs) === 1 && $seen === [$id, 5, ['to' => ['ada@php.example']]];
    ok('enqueue commits with its transaction', $kept && count($emails) === 1);

    $enqueued = array_map(fn($n) => enqueue($db, "$n@php.example"), range(1, 10));
    foreach ([$db, $other] as $each) {
        $each->beginTransaction();
        $each->exec("SET LOCAL lock_timeout = '1s'");
    }
    [$mine, $theirs] = [dequeue($db, 3), dequeue($other, 3)];
    array_push($mine, ...dequeue($db, 10));
    $db->commit();
    $other->commit();
    $all = [...$mine, ...$theirs];
    [$ids, $tokens] = [array_column($all, 'id'), array_column($all, 'token')];
    $arrays = array_map(fn($numbers) => '{' . implode(',', $numbers) . '}', [$ids, $tokens]);
    rows($db, 'SELECT pgq_complete(?::bigint[], ?::bigint[])', ...$arrays);
    sort($ids);
    $shared = count($mine) === 7 && count($theirs) === 3 && $ids === $enqueued;
    ok('two consumers claim side by side', $shared && dequeue($db) === []);

    enqueue($db, 'ada@php.example');
    [$job] = dequeue($db);
    $expiry = value($db, HEARTBEAT, $job['id'], $job['token']);
    value($db, COMPLETE, $job['id'], $job['token'], null);
    $renewed = new DateTime($expiry) > new DateTime($job['lease_expires_at']);
    ok('a heartbeat renews the lease', $renewed);

    enqueue($db, 'ada@php.example');
    [$old] = dequeue($db, 1, '1 millisecond');
    $deadline = time() + 10;
    while (!$again = dequeue($other)) {
        time() <= $deadline || throw new RuntimeException('the job was not claimed again');
    }
    $answers = [
        value($db, HEARTBEAT, $old['id'], $old['token']),
        value($db, COMPLETE, $old['id'], $old['token'], null),
        value($db, FAIL, $old['id'], $old['token'], 'too late'),
        value($other, COMPLETE, $again[0]['id'], $again[0]['token'], null),
    ];
    ok('a stale receipt changes nothing', $answers === [null, false, null, true]);
}

function outcomes(PDO $db, PDO $other): int
{
    $id = enqueue($db, 'ada@php.example', 'bob@php.example');
    consume($db);
    [$job] = rows($other, JOB, $id);
    $sent = json_decode($job['result'])->sent;
    ok('complete keeps the result', $job['state'] === 'completed' && $sent === 2);

    $id = enqueue($db, 'nobody');
    consume($db);
    [$job] = rows($other, JOB, $id);
    $dead = $job['state'] === 'dead' && $job['last_error'] === 'not an address: nobody';
    value($other, 'SELECT pgq_retry(?)', $id);
    [$job] = dequeue($db);
    $back = $job['id'] === $id && value($db, COMPLETE, $id, $job['token'], null);
    ok('fail ends dead, retry brings back', $dead && $back);

    $id = enqueue($db, 'ada@php.example');
    $db->beginTransaction();
    $tried = value($db, POP, QUEUE);
    $db->rollBack();
    $db->beginTransaction();
    $done = value($db, POP, QUEUE);
    $db->commit();
    $gone = dequeue($other) === [];
    ok('pop ends with its transaction', $tried === $id && $done === $id && $gone);

    $id = enqueue($db, 'ada@php.example');
    [$job] = rows($db, CLAIM, $id);
    $held = sqlstate($other, CLAIM, $id);
    value($db, COMPLETE, $id, $job['token'], null);
    ok('a held job is refused with 55P03', $held === '55P03');
    $unknown = sqlstate($db, "SELECT pgq_enqueue('{}', 'no such queue')");
    return ok('an unknown queue is refused with 42704', $unknown === '42704');
}

function waking(PDO $db, PDO $other): int
{
    $channel = value($db, 'SELECT quote_ident(pgq_channel(?))', QUEUE);
    $db->exec("LISTEN $channel");
    $woken = false;
    while (!$woken && ($seconds = value($db, WAIT, QUEUE)) > 0) {
        if ($seconds > 1) {
            enqueue($other, 'eve@php.example'); // somebody does, while this session sleeps
        }
        $woken = $db->pgsqlGetNotify(PDO::FETCH_ASSOC, (int) ceil($seconds * 1000));
    }
    $db->exec('SELECT pgq_wake()');
    return ok('a sleeping consumer is woken', $woken && count(dequeue($db)) === 1);
}

[$db, $other] = [connect(), connect()];
$db->exec('CREATE TABLE IF NOT EXISTS signup (email text)');
value($db, 'SELECT pgq_create_queue(?)', QUEUE);
claims($db, $other);
$number = outcomes($db, $other);
if (getenv('PGQ_LISTEN') !== 'off') {
    $number = waking($db, $other);
}
echo "1..$number\n";
