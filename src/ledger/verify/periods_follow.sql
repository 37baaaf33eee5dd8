-- Periods of one budget do not overlap.
select format('%s %s period %s begins at %s, before the one before it ends at %s',
              coalesce(nullif(account, ''), 'pool'), budget, id, starts_at, coalesce(ended_at::text, 'no time'))
from (select account, budget, id, starts_at, ordinal,
             lag(ends_at) over each_budget as ended_at, lag(id) over each_budget as before
      from budget_period
      window each_budget as (partition by account, budget, member order by starts_at)) p
where before is not null and (ended_at is null or starts_at < ended_at)
