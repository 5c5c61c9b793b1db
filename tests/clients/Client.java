// pgq from Java, with JDBC: one TAP line for each step in the life of jobs.
// PGHOST and so on lead to the database. PGQ_PREPARE=off and PGQ_LISTEN=off are for poolers.

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.sql.Array;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.postgresql.PGConnection;

public final class Client {
    private static final String QUEUE = "client-java";
    private static final String HEARTBEAT = "SELECT pgq_heartbeat(?, ?, '1 minute')";
    private static final String COMPLETE = "SELECT pgq_complete(?, ?, ?::jsonb)";
    private static final String FAIL = "SELECT pgq_fail(?, ?, ?, retry_in => '0')";
    private static final String POP = "SELECT id FROM pgq_pop(1, ?)";
    private static final String WAIT = "SELECT extract(epoch FROM pgq_wait(ARRAY[?]))::float8";
    private static final String CLAIM = "SELECT * FROM pgq_claim(?)";
    private static final Gson JSON = new Gson();

    private static int number = 0;

    record Job(long id, long token, int priority, String payload, OffsetDateTime expiry) {}

    static Connection connect() throws SQLException {
        Map<String, String> variables = System.getenv();
        String url = String.format("jdbc:postgresql://%s:%s/%s",
            variables.get("PGHOST"), variables.get("PGPORT"), variables.get("PGDATABASE"));
        Properties options = new Properties();
        options.setProperty("user", variables.get("PGUSER"));
        options.setProperty("password", variables.get("PGPASSWORD"));
        boolean prepares = !"off".equals(variables.get("PGQ_PREPARE"));
        options.setProperty("prepareThreshold", prepares ? "1" : "0");
        return DriverManager.getConnection(url, options);
    }

    static PreparedStatement prepare(Connection db, String sql, Object... parameters)
            throws SQLException {
        PreparedStatement statement = db.prepareStatement(sql);
        for (int i = 0; i < parameters.length; i++) {
            statement.setObject(i + 1, parameters[i]);
        }
        return statement;
    }

    static <T> T value(Class<T> type, Connection db, String sql, Object... parameters)
            throws SQLException {
        try (PreparedStatement statement = prepare(db, sql, parameters);
                ResultSet rows = statement.executeQuery()) {
            rows.next();
            return rows.getObject(1, type);
        }
    }

    static List<Job> jobs(Connection db, String sql, Object... parameters) throws SQLException {
        List<Job> jobs = new ArrayList<>();
        try (PreparedStatement statement = prepare(db, sql, parameters);
                ResultSet rows = statement.executeQuery()) {
            while (rows.next()) {
                jobs.add(new Job(
                    rows.getLong("id"), rows.getLong("token"), rows.getInt("priority"),
                    rows.getString("payload"),
                    rows.getObject("lease_expires_at", OffsetDateTime.class)));
            }
        }
        return jobs;
    }

    /** Adds a row and its job, in the caller's transaction: both commit, or neither does. */
    static long signUp(Connection db, String email) throws SQLException {
        try (PreparedStatement insert = prepare(db, "INSERT INTO signup VALUES (?)", email)) {
            insert.executeUpdate();
        }
        String payload = JSON.toJson(Map.of("to", List.of(email)));
        String sql = "SELECT pgq_enqueue(?::jsonb, ?, priority => 5)";
        return value(Long.class, db, sql, payload, QUEUE);
    }

    static long enqueue(Connection db, String... to) throws SQLException {
        String payload = JSON.toJson(Map.of("to", to));
        String sql = "SELECT pgq_enqueue(?::jsonb, ?, max_attempts => 2)";
        return value(Long.class, db, sql, payload, QUEUE);
    }

    static List<Job> dequeue(Connection db, int batch, String lease) throws SQLException {
        String sql = "SELECT * FROM pgq_dequeue(?, ?::interval, ?)";
        return jobs(db, sql, batch, lease, QUEUE);
    }

    static OffsetDateTime heartbeat(Connection db, Job job) throws SQLException {
        return value(OffsetDateTime.class, db, HEARTBEAT, job.id(), job.token());
    }

    static boolean complete(Connection db, Job job, Object result) throws SQLException {
        return value(Boolean.class, db, COMPLETE, job.id(), job.token(), JSON.toJson(result));
    }

    static String fail(Connection db, Job job, String error) throws SQLException {
        return value(String.class, db, FAIL, job.id(), job.token(), error);
    }

    /** Does a job in parts, and renews its lease before each. */
    static Map<String, Integer> deliver(Connection db, Job job) throws SQLException {
        JsonArray to = JSON.fromJson(job.payload(), JsonObject.class).getAsJsonArray("to");
        for (JsonElement address : to) {
            if (heartbeat(db, job) == null) {
                throw new IllegalStateException("the lease is lost: another worker has the job");
            }
            if (!address.getAsString().contains("@")) {
                throw new IllegalArgumentException("not an address: " + address.getAsString());
            }
        }
        return Map.of("sent", to.size());
    }

    /** Claims and settles jobs until there are none. */
    static void consume(Connection db) throws SQLException {
        for (;;) {
            List<Job> jobs = dequeue(db, 1, "30 seconds");
            if (jobs.isEmpty()) {
                return;
            }
            Job job = jobs.get(0);
            Map<String, Integer> result;
            try {
                result = deliver(db, job);
            } catch (RuntimeException error) {
                fail(db, job, error.getMessage());
                continue;
            }
            complete(db, job, result);
        }
    }

    static String sqlstate(Connection db, String sql, Object... parameters) {
        try (PreparedStatement statement = prepare(db, sql, parameters)) {
            statement.execute();
            return null;
        } catch (SQLException error) {
            return error.getSQLState();
        }
    }

    static void ok(String name, boolean passed) {
        number++;
        if (!passed) {
            throw new IllegalStateException("not ok " + number + " - " + name);
        }
        System.out.println("ok " + number + " - " + name);
    }

    static void claims(Connection db, Connection other) throws SQLException {
        db.setAutoCommit(false);
        long id = signUp(db, "ada@java.example");
        db.commit();
        signUp(db, "bob@java.example");
        db.rollback();
        db.setAutoCommit(true);
        String count = "SELECT count(*) FROM signup WHERE email LIKE '%@java.example'";
        long emails = value(Long.class, db, count);
        List<Job> jobs = dequeue(db, 10, "30 seconds");
        Job job = jobs.get(0);
        complete(db, job, null);
        boolean kept = jobs.size() == 1 && job.id() == id && job.priority() == 5;
        kept &= emails == 1 && job.payload().contains("ada@java.example");
        ok("enqueue commits with its transaction", kept);

        List<Long> enqueued = new ArrayList<>();
        for (int n = 0; n < 10; n++) {
            enqueued.add(enqueue(db, n + "@java.example"));
        }
        for (Connection each : List.of(db, other)) {
            each.setAutoCommit(false);
            each.createStatement().execute("SET LOCAL lock_timeout = '1s'");
        }
        List<Job> mine = dequeue(db, 3, "30 seconds");
        List<Job> theirs = dequeue(other, 3, "30 seconds");
        mine.addAll(dequeue(db, 10, "30 seconds"));
        for (Connection each : List.of(db, other)) {
            each.commit();
            each.setAutoCommit(true);
        }
        boolean shared = mine.size() == 7 && theirs.size() == 3;
        mine.addAll(theirs);
        Array ids = db.createArrayOf("bigint", mine.stream().map(Job::id).toArray());
        Array tokens = db.createArrayOf("bigint", mine.stream().map(Job::token).toArray());
        prepare(db, "SELECT pgq_complete(?, ?)", ids, tokens).execute();
        shared &= mine.stream().map(Job::id).sorted().toList().equals(enqueued);
        ok("two consumers claim side by side", shared && dequeue(db, 1, "1 second").isEmpty());

        enqueue(db, "ada@java.example");
        job = dequeue(db, 1, "30 seconds").get(0);
        OffsetDateTime expiry = heartbeat(db, job);
        complete(db, job, null);
        ok("a heartbeat renews the lease", expiry.isAfter(job.expiry()));

        enqueue(db, "ada@java.example");
        Job old = dequeue(db, 1, "1 millisecond").get(0);
        Instant deadline = Instant.now().plusSeconds(10);
        for (jobs = List.of(); jobs.isEmpty(); jobs = dequeue(other, 1, "30 seconds")) {
            if (Instant.now().isAfter(deadline)) {
                throw new IllegalStateException("the job was not claimed again");
            }
        }
        boolean stale = heartbeat(db, old) == null && !complete(db, old, null);
        stale &= fail(db, old, "too late") == null;
        ok("a stale receipt changes nothing", stale && complete(other, jobs.get(0), null));
    }

    static void outcomes(Connection db, Connection other) throws SQLException {
        long id = enqueue(db, "ada@java.example", "bob@java.example");
        consume(db);
        String outcome = "SELECT state || ' ' || result FROM pgq_jobs WHERE id = ?";
        String seen = value(String.class, other, outcome, id);
        ok("complete keeps the result", seen.equals("completed {\"sent\": 2}"));

        id = enqueue(db, "nobody");
        consume(db);
        outcome = "SELECT state || ', ' || last_error FROM pgq_jobs WHERE id = ?";
        seen = value(String.class, other, outcome, id);
        value(Boolean.class, other, "SELECT pgq_retry(?)", id);
        Job job = dequeue(db, 1, "30 seconds").get(0);
        boolean back = job.id() == id && complete(db, job, null);
        boolean dead = seen.equals("dead, not an address: nobody");
        ok("fail ends dead, retry brings back", dead && back);

        id = enqueue(db, "ada@java.example");
        db.setAutoCommit(false);
        long tried = value(Long.class, db, POP, QUEUE);
        db.rollback();
        long done = value(Long.class, db, POP, QUEUE);
        db.commit();
        db.setAutoCommit(true);
        boolean gone = dequeue(other, 1, "30 seconds").isEmpty();
        ok("pop ends with its transaction", tried == id && done == id && gone);

        id = enqueue(db, "ada@java.example");
        job = jobs(db, CLAIM, id).get(0);
        String held = sqlstate(other, CLAIM, id);
        complete(db, job, null);
        ok("a held job is refused with 55P03", "55P03".equals(held));
        String unknown = sqlstate(db, "SELECT pgq_enqueue('{}', 'no such queue')");
        ok("an unknown queue is refused with 42704", "42704".equals(unknown));
    }

    static void waking(Connection db, Connection other) throws SQLException {
        PGConnection listener = db.unwrap(PGConnection.class);
        String channel = value(String.class, db, "SELECT pgq_channel(?)", QUEUE);
        db.createStatement().execute("LISTEN " + listener.escapeIdentifier(channel));
        boolean woken = false;
        double seconds;
        while (!woken && (seconds = value(Double.class, db, WAIT, QUEUE)) > 0) {
            if (seconds > 1) {
                enqueue(other, "eve@java.example"); // somebody does, while this session sleeps
            }
            woken = listener.getNotifications((int) Math.ceil(seconds * 1000)).length > 0;
        }
        db.createStatement().execute("SELECT pgq_wake()");
        ok("a sleeping consumer is woken", woken && dequeue(db, 1, "30 seconds").size() == 1);
    }

    public static void main(String[] arguments) throws SQLException {
        try (Connection db = connect(); Connection other = connect()) {
            db.createStatement().execute("CREATE TABLE IF NOT EXISTS signup (email text)");
            prepare(db, "SELECT pgq_create_queue(?)", QUEUE).execute();
            claims(db, other);
            outcomes(db, other);
            if (!"off".equals(System.getenv("PGQ_LISTEN"))) {
                waking(db, other);
            }
            System.out.println("1.." + number);
        }
    }
}
