\set dice random(1, 10)
\if :dice = 1
select pgq_enqueue('{{payload}}', run_at => now() + make_interval(secs => 30 * random()));
\else
select pgq_enqueue('{{payload}}');
\endif
