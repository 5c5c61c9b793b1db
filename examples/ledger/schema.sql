select pgq_create_queue('transfers');

create table account (
    id text primary key,
    balance bigint not null check (balance >= 0)
);

-- Without a unique key on job: a transfer that was made twice would be seen twice.
create table transfer (
    job bigint not null,
    source text not null references account,
    target text not null references account,
    cents bigint not null check (cents > 0),
    check (source <> target)
);

insert into account values ('ada', 100000), ('bob', 100000), ('eve', 100000);
