-- At most 50 requests start per second, tries included. A delivery is tried for about a day.
select pgq_create_queue('webhooks',
    rate_limit => 50, rate_interval => '1 second',
    max_attempts => 13, backoff_base => '10 seconds', backoff_factor => 3, backoff_max => '4 hours');

create table receiver (
    id bigint generated always as identity primary key,
    url text not null
);
