/*
 * 0.1.0 to 0.2.0: queues have a description and know their first job; pgq._regrant runs at a
 * commit; pgq.home tells restored and cloned databases; jobs that a clock set back has put below a
 * claim position are counted; claims that return jobs put maintenance off.
 */

create sequence pgq.home;
create sequence pgq.put_off;
create sequence pgq.admission;
create sequence pgq.admission_seen;
--@ functions
--@ lock pgq.queue, pgq.chore
alter table pgq.queue add column description text;
alter table pgq.queue add column first_job bigint not null default 0;
alter table pgq.chore add column regrant boolean;
