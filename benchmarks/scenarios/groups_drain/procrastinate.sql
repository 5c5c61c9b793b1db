select count(*)
  from procrastinate_defer_jobs_v1(array(
           select row(
                      'default', 'bench', 0, 'g' || ceil(:groups * random()), null,
                      '{{payload}}', null
                  )::procrastinate_job_to_defer_v1
             from generate_series(1, :batch)
       ));
