-- The stretches that a table lies in cover all of time, so that no row is ever
-- without a place; only what has been archived may be missing (until its time has a
-- place again). A month that was taken out without a record is found by this, also
-- one of calls, whose amounts the books do not need any more, and one without rows.
with bounds as (
    select t.name as of_table, s.name, s.starts_at, s.ends_at,
           coalesce(lag(s.ends_at) over each_table, '-infinity') as ended_at
    from unnest(array['journal_entry', 'call', 'refusal']) t (name)
    cross join lateral (
        select * from stretches(t.name)
        union all
        select null, 'infinity', 'infinity', false) s
    window each_table as (partition by t.name order by s.starts_at, s.ends_at))
select format('%s has no place for rows from %s to %s, which were not archived', b.of_table, b.ended_at, b.starts_at)
from bounds b
where b.ended_at < b.starts_at
  and b.starts_at > coalesce((select max(m.ends_at) from archived_month m where m.of_table = b.of_table), '-infinity')
