-- The reserved and liability balances of a budget period equal the sums over the
-- open reservations charged to it (invariant 4).
select format('%s %s period %s: reserved %s and liability %s, its open reservations hold %s and %s',
              coalesce(nullif(p.account, ''), 'pool'), p.budget, p.id,
              trim_scale(p.reserved), trim_scale(p.liability),
              trim_scale(coalesce(h.reserved, 0)), trim_scale(coalesce(h.liability, 0)))
from budget_period p
left join (select period_id, sum(r.reserved) as reserved, sum(r.liability) as liability
           from reservation r
           cross join unnest(r.period_ids) period_id
           where r.state in ('waiting', 'active', 'cancelling', 'fenced')
           group by period_id) h on h.period_id = p.id
where p.reserved <> coalesce(h.reserved, 0) or p.liability <> coalesce(h.liability, 0)
