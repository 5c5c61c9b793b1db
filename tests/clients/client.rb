# pgq from Ruby, with pg: one TAP line for each step in the life of jobs.
# PGHOST and so on lead to the database. PGQ_LISTEN=off is for poolers.

require "json"
require "pg"

QUEUE = "client-ruby"
HEARTBEAT = "SELECT pgq_heartbeat($1::bigint, $2::bigint, '1 minute')"
COMPLETE = "SELECT pgq_complete($1::bigint, $2::bigint, $3::jsonb)"
FAIL = "SELECT pgq_fail($1::bigint, $2::bigint, $3, retry_in => '0')"
POP = "SELECT id FROM pgq_pop(1, $1)"
WAIT = "SELECT extract(epoch FROM pgq_wait(ARRAY[$1]))::float8"
JOB = "SELECT * FROM pgq_jobs WHERE id = $1::bigint"
CLAIM = "SELECT * FROM pgq_claim($1::bigint)"

def connect
  db = PG.connect
  db.type_map_for_results = PG::BasicTypeMapForResults.new(db)
  db
end

def rows(db, query, *parameters)
  db.exec_params(query, parameters).to_a
end

def value(db, query, *parameters)
  rows(db, query, *parameters).first.values.first
end

# Adds a row and its job, in the caller's transaction: both commit, or neither does.
def sign_up(db, email)
  db.exec_params("INSERT INTO signup VALUES ($1)", [email])
  query = "SELECT pgq_enqueue($1::jsonb, $2, priority => 5)"
  value(db, query, JSON.generate(to: [email]), QUEUE)
end

def enqueue(db, *to)
  query = "SELECT pgq_enqueue($1::jsonb, $2, max_attempts => 2)"
  value(db, query, JSON.generate(to: to), QUEUE)
end

def dequeue(db, batch = 1, lease = "30 seconds")
  rows(db, "SELECT * FROM pgq_dequeue($1, $2::interval, $3)", batch, lease, QUEUE)
end

# Does a job in parts, and renews its lease before each.
def deliver(db, job)
  job["payload"]["to"].each do |address|
    if value(db, HEARTBEAT, job["id"], job["token"]).nil?
      raise "the lease is lost: another worker has the job"
    end
    raise ArgumentError, "not an address: #{address}" unless address.include?("@")
  end
  { sent: job["payload"]["to"].size }
end

# Claims and settles jobs until there are none.
def consume(db)
  while (job = dequeue(db).first)
    begin
      result = deliver(db, job)
    rescue StandardError => error
      value(db, FAIL, job["id"], job["token"], error.message)
    else
      value(db, COMPLETE, job["id"], job["token"], JSON.generate(result))
    end
  end
end

def sqlstate(db, query, *parameters)
  rows(db, query, *parameters)
  nil
rescue PG::Error => error
  error.result.error_field(PG::Result::PG_DIAG_SQLSTATE)
end

$number = 0

def ok(name, passed)
  $number += 1
  abort "not ok #{$number} - #{name}" unless passed
  puts "ok #{$number} - #{name}"
end

def claims(db, other)
  id = db.transaction { sign_up(db, "ada@ruby.example") }
  db.exec("BEGIN")
  sign_up(db, "bob@ruby.example")
  db.exec("ROLLBACK")
  emails = rows(db, "SELECT * FROM signup WHERE email LIKE '%@ruby.example'")
  jobs = dequeue(db, 10)
  value(db, COMPLETE, jobs[0]["id"], jobs[0]["token"], nil)
  seen = jobs.map { |job| job.values_at("id", "priority", "payload") }
  kept = seen == [[id, 5, { "to" => ["ada@ruby.example"] }]]
  ok("enqueue commits with its transaction", kept && emails.size == 1)

  enqueued = (1..10).map { |n| enqueue(db, "#{n}@ruby.example") }
  [db, other].each { |each| each.exec("BEGIN; SET LOCAL lock_timeout = '1s'") }
  mine = dequeue(db, 3)
  theirs = dequeue(other, 3)
  mine += dequeue(db, 10)
  [db, other].each { |each| each.exec("COMMIT") }
  ids, tokens = %w[id token].map { |name| (mine + theirs).map { |job| job[name] } }
  arrays = [ids, tokens].map { |numbers| PG::TextEncoder::Array.new.encode(numbers) }
  rows(db, "SELECT pgq_complete($1::bigint[], $2::bigint[])", *arrays)
  shared = [mine.size, theirs.size] == [7, 3] && ids.sort == enqueued
  ok("two consumers claim side by side", shared && dequeue(db).empty?)

  enqueue(db, "ada@ruby.example")
  job, = dequeue(db)
  expiry = value(db, HEARTBEAT, job["id"], job["token"])
  value(db, COMPLETE, job["id"], job["token"], nil)
  ok("a heartbeat renews the lease", expiry > job["lease_expires_at"])

  enqueue(db, "ada@ruby.example")
  old, = dequeue(db, 1, "1 millisecond")
  deadline = Time.now + 10
  until (again, = dequeue(other)) && again
    raise "the job was not claimed again" if Time.now > deadline
  end
  answers = [
    value(db, HEARTBEAT, old["id"], old["token"]),
    value(db, COMPLETE, old["id"], old["token"], nil),
    value(db, FAIL, old["id"], old["token"], "too late"),
    value(other, COMPLETE, again["id"], again["token"], nil)
  ]
  ok("a stale receipt changes nothing", answers == [nil, false, nil, true])
end

def outcomes(db, other)
  id = enqueue(db, "ada@ruby.example", "bob@ruby.example")
  consume(db)
  job, = rows(other, JOB, id)
  seen = job.values_at("state", "result")
  ok("complete keeps the result", seen == ["completed", { "sent" => 2 }])

  id = enqueue(db, "nobody")
  consume(db)
  job, = rows(other, JOB, id)
  dead = job.values_at("state", "last_error") == ["dead", "not an address: nobody"]
  value(other, "SELECT pgq_retry($1::bigint)", id)
  job, = dequeue(db)
  back = job["id"] == id && value(db, COMPLETE, id, job["token"], nil)
  ok("fail ends dead, retry brings back", dead && back)

  id = enqueue(db, "ada@ruby.example")
  db.exec("BEGIN")
  tried = value(db, POP, QUEUE)
  db.exec("ROLLBACK")
  done = db.transaction { value(db, POP, QUEUE) }
  ok("pop ends with its transaction", [tried, done] == [id, id] && dequeue(other).empty?)

  id = enqueue(db, "ada@ruby.example")
  job, = rows(db, CLAIM, id)
  held = sqlstate(other, CLAIM, id)
  value(db, COMPLETE, id, job["token"], nil)
  ok("a held job is refused with 55P03", held == "55P03")
  unknown = sqlstate(db, "SELECT pgq_enqueue('{}', 'no such queue')")
  ok("an unknown queue is refused with 42704", unknown == "42704")
end

def waking(db, other)
  channel = value(db, "SELECT pgq_channel($1)", QUEUE)
  db.exec("LISTEN #{db.quote_ident(channel)}")
  woken = nil
  while !woken && (seconds = value(db, WAIT, QUEUE)) > 0
    enqueue(other, "eve@ruby.example") if seconds > 1 # somebody does, while this session sleeps
    woken = db.wait_for_notify(seconds)
  end
  db.exec("SELECT pgq_wake()")
  ok("a sleeping consumer is woken", woken && dequeue(db).size == 1)
end

db, other = Array.new(2) { connect }
db.exec("CREATE TABLE IF NOT EXISTS signup (email text)")
db.exec_params("SELECT pgq_create_queue($1)", [QUEUE])
claims(db, other)
outcomes(db, other)
waking(db, other) unless ENV["PGQ_LISTEN"] == "off"
puts "1..#{$number}"
