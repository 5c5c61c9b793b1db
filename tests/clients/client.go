// pgq from Go, with database/sql and lib/pq: one TAP line for each step in the life of jobs.
// PGHOST and so on lead to the database. PGQ_PREPARE=off and PGQ_LISTEN=off are for poolers.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/lib/pq"
)

const (
	queue     = "client-go"
	columns   = "SELECT id, token, priority, payload, lease_expires_at FROM "
	heartbeat = "SELECT pgq_heartbeat($1::bigint, $2::bigint, '1 minute')"
	complete  = "SELECT pgq_complete($1::bigint, $2::bigint, $3::jsonb)"
	fail      = "SELECT pgq_fail($1::bigint, $2::bigint, $3, retry_in => '0')"
	pop       = "SELECT id FROM pgq_pop(1, $1)"
	wait      = "SELECT extract(epoch FROM pgq_wait(ARRAY[$1]))::float8"
	outcome   = "SELECT concat_ws(', ', state, result, last_error) FROM pgq_jobs WHERE id = $1"
)

var (
	ctx    = context.Background()
	number = 0
)

// session is what *sql.DB, *sql.Conn and *sql.Tx have in common.
type session interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

type message struct {
	To []string `json:"to"`
}

type job struct {
	id, token int64
	priority  int
	payload   message
	expiry    time.Time
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func encode(value any) string {
	text, err := json.Marshal(value)
	check(err)
	return string(text)
}

func value[T any](db session, query string, args ...any) (answer T) {
	check(db.QueryRowContext(ctx, query, args...).Scan(&answer))
	return answer
}

func jobs(db session, source string, args ...any) (found []job) {
	rows, err := db.QueryContext(ctx, columns+source, args...)
	check(err)
	defer rows.Close()
	for rows.Next() {
		var j job
		var payload []byte
		check(rows.Scan(&j.id, &j.token, &j.priority, &payload, &j.expiry))
		check(json.Unmarshal(payload, &j.payload))
		found = append(found, j)
	}
	check(rows.Err())
	return found
}

// signUp adds a row and its job, in the caller's transaction: both commit, or neither does.
func signUp(tx *sql.Tx, email string) int64 {
	_, err := tx.ExecContext(ctx, "INSERT INTO signup VALUES ($1)", email)
	check(err)
	query := "SELECT pgq_enqueue($1::jsonb, $2, priority => 5)"
	return value[int64](tx, query, encode(message{To: []string{email}}), queue)
}

func enqueue(db session, to ...string) int64 {
	query := "SELECT pgq_enqueue($1::jsonb, $2, max_attempts => 2)"
	return value[int64](db, query, encode(message{To: to}), queue)
}

func dequeue(db session, batch int, lease string) []job {
	return jobs(db, "pgq_dequeue($1, $2::interval, $3)", batch, lease, queue)
}

// deliver does a job in parts, and renews its lease before each.
func deliver(db session, j job) (any, error) {
	for _, address := range j.payload.To {
		if value[*time.Time](db, heartbeat, j.id, j.token) == nil {
			return nil, errors.New("the lease is lost: another worker has the job")
		}
		if !strings.Contains(address, "@") {
			return nil, fmt.Errorf("not an address: %s", address)
		}
	}
	return map[string]int{"sent": len(j.payload.To)}, nil
}

// consume claims and settles jobs until there are none.
func consume(db session) {
	for {
		claimed := dequeue(db, 1, "30 seconds")
		if len(claimed) == 0 {
			return
		}
		j := claimed[0]
		if result, err := deliver(db, j); err != nil {
			value[*string](db, fail, j.id, j.token, err.Error())
		} else {
			value[bool](db, complete, j.id, j.token, encode(result))
		}
	}
}

func sqlstate(db session, query string, args ...any) string {
	_, err := db.ExecContext(ctx, query, args...)
	var refused *pq.Error
	if errors.As(err, &refused) {
		return string(refused.Code)
	}
	return ""
}

func ok(name string, passed bool) {
	number++
	if !passed {
		log.Fatalf("not ok %d - %s", number, name)
	}
	fmt.Printf("ok %d - %s\n", number, name)
}

func begin(conn *sql.Conn) *sql.Tx {
	tx, err := conn.BeginTx(ctx, nil)
	check(err)
	return tx
}

func claims(db, other *sql.Conn) {
	tx := begin(db)
	id := signUp(tx, "ada@go.example")
	check(tx.Commit())
	tx = begin(db)
	signUp(tx, "bob@go.example")
	check(tx.Rollback())
	emails := value[int](db, "SELECT count(*) FROM signup WHERE email LIKE '%@go.example'")
	claimed := dequeue(db, 10, "30 seconds")
	j := claimed[0]
	value[bool](db, complete, j.id, j.token, nil)
	kept := len(claimed) == 1 && j.id == id && j.priority == 5 && j.payload.To[0] == "ada@go.example"
	ok("enqueue commits with its transaction", kept && emails == 1)

	var enqueued, ids, tokens []int64
	for n := 0; n < 10; n++ {
		enqueued = append(enqueued, enqueue(db, fmt.Sprintf("%d@go.example", n)))
	}
	first, second := begin(db), begin(other)
	for _, each := range []*sql.Tx{first, second} {
		_, err := each.ExecContext(ctx, "SET LOCAL lock_timeout = '1s'")
		check(err)
	}
	mine, theirs := dequeue(first, 3, "30 seconds"), dequeue(second, 3, "30 seconds")
	mine = append(mine, dequeue(first, 10, "30 seconds")...)
	check(first.Commit())
	check(second.Commit())
	for _, j := range append(mine, theirs...) {
		ids, tokens = append(ids, j.id), append(tokens, j.token)
	}
	_, err := db.ExecContext(
		ctx, "SELECT pgq_complete($1::bigint[], $2::bigint[])", pq.Array(ids), pq.Array(tokens),
	)
	check(err)
	sort.Slice(ids, func(a, b int) bool { return ids[a] < ids[b] })
	shared := len(mine) == 7 && len(theirs) == 3 && reflect.DeepEqual(ids, enqueued)
	ok("two consumers claim side by side", shared && len(dequeue(db, 1, "30 seconds")) == 0)

	enqueue(db, "ada@go.example")
	j = dequeue(db, 1, "30 seconds")[0]
	expiry := value[time.Time](db, heartbeat, j.id, j.token)
	value[bool](db, complete, j.id, j.token, nil)
	ok("a heartbeat renews the lease", expiry.After(j.expiry))

	enqueue(db, "ada@go.example")
	old := dequeue(db, 1, "1 millisecond")[0]
	deadline := time.Now().Add(10 * time.Second)
	var again []job
	for len(again) == 0 {
		if time.Now().After(deadline) {
			log.Fatal("the job was not claimed again")
		}
		again = dequeue(other, 1, "30 seconds")
	}
	stale := value[*time.Time](db, heartbeat, old.id, old.token) == nil
	stale = stale && !value[bool](db, complete, old.id, old.token, nil)
	stale = stale && value[*string](db, fail, old.id, old.token, "too late") == nil
	done := value[bool](other, complete, again[0].id, again[0].token, nil)
	ok("a stale receipt changes nothing", stale && done)
}

func outcomes(db, other *sql.Conn) {
	id := enqueue(db, "ada@go.example", "bob@go.example")
	consume(db)
	seen := value[string](other, outcome, id)
	ok("complete keeps the result", seen == `completed, {"sent": 2}`)

	id = enqueue(db, "nobody")
	consume(db)
	seen = value[string](other, outcome, id)
	value[bool](other, "SELECT pgq_retry($1)", id)
	j := dequeue(db, 1, "30 seconds")[0]
	back := j.id == id && value[bool](db, complete, id, j.token, nil)
	ok("fail ends dead, retry brings back", back && seen == "dead, not an address: nobody")

	id = enqueue(db, "ada@go.example")
	tx := begin(db)
	tried := value[int64](tx, pop, queue)
	check(tx.Rollback())
	tx = begin(db)
	popped := value[int64](tx, pop, queue)
	check(tx.Commit())
	gone := len(dequeue(other, 1, "30 seconds")) == 0
	ok("pop ends with its transaction", tried == id && popped == id && gone)

	id = enqueue(db, "ada@go.example")
	j = jobs(db, "pgq_claim($1)", id)[0]
	held := sqlstate(other, "SELECT pgq_claim($1)", id)
	value[bool](db, complete, id, j.token, nil)
	ok("a held job is refused with 55P03", held == "55P03")
	unknown := sqlstate(db, "SELECT pgq_enqueue('{}', 'no such queue')")
	ok("an unknown queue is refused with 42704", unknown == "42704")
}

func waking(db, other *sql.Conn) {
	listener := pq.NewListener("", time.Second, time.Minute, nil) // on a connection of its own
	defer listener.Close()
	check(listener.Listen(value[string](db, "SELECT pgq_channel($1)", queue)))
	woken := false
	for !woken {
		seconds := value[float64](db, wait, queue)
		if seconds == 0 {
			break
		}
		if seconds > 1 {
			enqueue(other, "eve@go.example") // somebody does, while this session sleeps
		}
		select {
		case <-listener.Notify:
			woken = true
		case <-time.After(time.Duration(seconds * float64(time.Second))):
		}
	}
	value[string](db, "SELECT pgq_wake()")
	ok("a sleeping consumer is woken", woken && len(dequeue(db, 1, "30 seconds")) == 1)
}

func main() {
	options := ""
	if os.Getenv("PGQ_PREPARE") == "off" {
		options = "binary_parameters=yes"
	}
	pool, err := sql.Open("postgres", options)
	check(err)
	db, err := pool.Conn(ctx)
	check(err)
	other, err := pool.Conn(ctx)
	check(err)
	_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS signup (email text)")
	check(err)
	value[string](db, "SELECT pgq_create_queue($1)", queue)
	claims(db, other)
	outcomes(db, other)
	if os.Getenv("PGQ_LISTEN") != "off" {
		waking(db, other)
	}
	fmt.Printf("1..%d\n", number)
}
