# pgq from Perl, with DBD::Pg: one TAP line for each step in the life of jobs.
# PGHOST and so on lead to the database. PGQ_PREPARE=off and PGQ_LISTEN=off are for poolers.

use v5.36;

use DBD::Pg;
use DBI;
use IO::Select;
use JSON::PP;

use constant QUEUE     => 'client-perl';
use constant HEARTBEAT => q{SELECT pgq_heartbeat(?::bigint, ?::bigint, '1 minute')};
use constant COMPLETE  => q{SELECT pgq_complete(?::bigint, ?::bigint, ?)};
use constant FAIL      => q{SELECT pgq_fail(?::bigint, ?::bigint, ?, retry_in => '0')};
use constant POP       => q{SELECT id FROM pgq_pop(1, ?)};
use constant WAIT      => q{SELECT extract(epoch FROM pgq_wait(?::text[]))};
use constant JOB       => q{SELECT * FROM pgq_jobs WHERE id = ?};
use constant CLAIM     => q{SELECT * FROM pgq_claim(?)};

my $number = 0;

sub connect_to_database() {
    my $prepares = ($ENV{PGQ_PREPARE} // '') ne 'off';
    return DBI->connect('dbi:Pg:', undef, undef, {
        AutoCommit         => 1,
        PrintError         => 0,
        RaiseError         => 1,
        pg_server_prepare  => $prepares,
        pg_switch_prepared => 1,
    });
}

sub rows($db, $query, @parameters) {
    return $db->selectall_array($db->prepare_cached($query), { Slice => {} }, @parameters);
}

sub value($db, $query, @parameters) {
    my ($value) = $db->selectrow_array($db->prepare_cached($query), undef, @parameters);
    return $value;
}

# Adds a row and its job, in the caller's transaction: both commit, or neither does.
sub sign_up($db, $email) {
    $db->do('INSERT INTO signup VALUES (?)', undef, $email);
    my $query = 'SELECT pgq_enqueue(?::jsonb, ?, priority => 5)';
    return value($db, $query, encode_json({ to => [$email] }), QUEUE);
}

sub enqueue($db, @to) {
    my $query = 'SELECT pgq_enqueue(?::jsonb, ?, max_attempts => 2)';
    return value($db, $query, encode_json({ to => \@to }), QUEUE);
}

sub dequeue($db, $batch = 1, $lease = '30 seconds') {
    return rows($db, 'SELECT * FROM pgq_dequeue(?, ?::interval, ?)', $batch, $lease, QUEUE);
}

# Does a job in parts, and renews its lease before each.
sub deliver($db, $job) {
    my $to = decode_json($job->{payload})->{to};
    for my $address (@$to) {
        defined value($db, HEARTBEAT, $job->{id}, $job->{token})
            or die "the lease is lost: another worker has the job\n";
        $address =~ /@/ or die "not an address: $address\n";
    }
    return { sent => scalar @$to };
}

# Claims and settles jobs until there are none.
sub consume($db) {
    while (my ($job) = dequeue($db)) {
        my $result = eval { deliver($db, $job) };
        if ($@) {
            chomp(my $error = $@);
            value($db, FAIL, $job->{id}, $job->{token}, $error);
        }
        else {
            value($db, COMPLETE, $job->{id}, $job->{token}, encode_json($result));
        }
    }
    return;
}

sub sqlstate($db, $query, @parameters) {
    eval { rows($db, $query, @parameters) };
    return $db->state;
}

sub ok($name, $passed) {
    $number += 1;
    die "not ok $number - $name\n" if !$passed;
    say "ok $number - $name";
    return;
}

sub claims($db, $other) {
    $db->begin_work;
    my $id = sign_up($db, 'ada@perl.example');
    $db->commit;
    $db->begin_work;
    sign_up($db, 'bob@perl.example');
    $db->rollback;
    my $emails = value($db, q{SELECT count(*) FROM signup WHERE email LIKE '%@perl.example'});
    my ($job, @others) = dequeue($db, 10);
    value($db, COMPLETE, $job->{id}, $job->{token}, undef);
    my $kept = $job->{id} == $id && $job->{priority} == 5 && $job->{payload} =~ /ada\@perl/;
    ok('enqueue commits with its transaction', $kept && !@others && $emails == 1);

    my @enqueued = map { enqueue($db, "$_\@perl.example") } 1 .. 10;
    for ($db, $other) {
        $_->begin_work;
        $_->do(q{SET LOCAL lock_timeout = '1s'});
    }
    my @mine   = dequeue($db, 3);
    my @theirs = dequeue($other, 3);
    push @mine, dequeue($db, 10);
    $_->commit for $db, $other;
    my @ids    = map { $_->{id} } @mine, @theirs;
    my @tokens = map { $_->{token} } @mine, @theirs;
    rows($db, 'SELECT pgq_complete(?::bigint[], ?::bigint[])', \@ids, \@tokens);
    my $all = "@{[sort { $a <=> $b } @ids]}" eq "@enqueued" && !dequeue($db);
    ok('two consumers claim side by side', $all && @mine == 7 && @theirs == 3);

    enqueue($db, 'ada@perl.example');
    ($job) = dequeue($db);
    my $expiry = value($db, HEARTBEAT, $job->{id}, $job->{token});
    value($db, COMPLETE, $job->{id}, $job->{token}, undef);
    my $query = 'SELECT ?::timestamptz > ?::timestamptz';
    ok('a heartbeat renews the lease', value($db, $query, $expiry, $job->{lease_expires_at}));

    enqueue($db, 'ada@perl.example');
    my ($old) = dequeue($db, 1, '1 millisecond');
    my @receipt  = @{$old}{qw(id token)};
    my $deadline = time + 10;
    my $again;
    until (($again) = dequeue($other)) {
        die "the job was not claimed again\n" if time > $deadline;
    }
    my $stale = !defined value($db, HEARTBEAT, @receipt);
    $stale &&= !value($db, COMPLETE, @receipt, undef);
    $stale &&= !defined value($db, FAIL, @receipt, 'too late');
    my $done = value($other, COMPLETE, $again->{id}, $again->{token}, undef);
    ok('a stale receipt changes nothing', $stale && $done);
    return;
}

sub outcomes($db, $other) {
    my $id = enqueue($db, 'ada@perl.example', 'bob@perl.example');
    consume($db);
    my ($job) = rows($other, JOB, $id);
    my $sent = decode_json($job->{result})->{sent};
    ok('complete keeps the result', $job->{state} eq 'completed' && $sent == 2);

    $id = enqueue($db, 'nobody');
    consume($db);
    ($job) = rows($other, JOB, $id);
    my $dead = $job->{state} eq 'dead' && $job->{last_error} eq 'not an address: nobody';
    value($other, 'SELECT pgq_retry(?)', $id);
    ($job) = dequeue($db);
    my $back = $job->{id} == $id && value($db, COMPLETE, $id, $job->{token}, undef);
    ok('fail ends dead, retry brings back', $dead && $back);

    $id = enqueue($db, 'ada@perl.example');
    $db->begin_work;
    my $tried = value($db, POP, QUEUE);
    $db->rollback;
    $db->begin_work;
    my $done = value($db, POP, QUEUE);
    $db->commit;
    ok('pop ends with its transaction', $tried == $id && $done == $id && !dequeue($other));

    $id = enqueue($db, 'ada@perl.example');
    ($job) = rows($db, CLAIM, $id);
    my $held = sqlstate($other, CLAIM, $id);
    value($db, COMPLETE, $id, $job->{token}, undef);
    ok('a held job is refused with 55P03', $held eq '55P03');
    my $unknown = sqlstate($db, q{SELECT pgq_enqueue('{}', 'no such queue')});
    ok('an unknown queue is refused with 42704', $unknown eq '42704');
    return;
}

sub waking($db, $other) {
    my $channel = value($db, 'SELECT pgq_channel(?)', QUEUE);
    $db->do('LISTEN ' . $db->quote_identifier($channel));
    my $socket = IO::Select->new($db->{pg_socket});
    my $woken;
    while (!$woken && (my $seconds = value($db, WAIT, [QUEUE])) > 0) {
        if ($seconds > 1) {
            enqueue($other, 'eve@perl.example');    # somebody does, while this session sleeps
        }
        $woken = $db->pg_notifies || $socket->can_read($seconds) && $db->pg_notifies;
    }
    $db->do('SELECT pgq_wake()');
    my @jobs = dequeue($db);
    ok('a sleeping consumer is woken', $woken && @jobs == 1);
    return;
}

my ($db, $other) = map { connect_to_database() } 1 .. 2;
$db->do('CREATE TABLE IF NOT EXISTS signup (email text)');
value($db, 'SELECT pgq_create_queue(?)', QUEUE);
claims($db, $other);
outcomes($db, $other);
waking($db, $other) if ($ENV{PGQ_LISTEN} // '') ne 'off';
say "1..$number";
