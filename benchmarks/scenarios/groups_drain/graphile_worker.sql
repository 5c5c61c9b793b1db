select count(*)
  from graphile_worker.add_jobs(array(
           select row(
                      'bench', '{{payload}}', 'g' || ceil(:groups * random()), null, null, null,
                      null, null
                  )::graphile_worker.job_spec
             from generate_series(1, :batch)
       ));
