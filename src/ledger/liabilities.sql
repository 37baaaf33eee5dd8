-- What is open and needs somebody, oldest first, and why. Each part of what such a
-- reservation holds has one reason, so that the parts add up; liability_totals.sql
-- sums the same parts.
select reservation_json(r) as "record!: Json<Record>",
       reservation_periods(r) as "budgets!: Json<Vec<ChargedPeriod>>",
       clock.at as "at!",
       p.why as "why!",
       coalesce(case when 'overdue' = any (p.why) then r.lease_expires_at end,
                -- When it began to have something in liability that it has never since been without.
                (select min(e.at)
                 from reservation_event e
                 where e.account = r.account and e.reservation_id = r.id
                   and e.version > coalesce((select max(z.version)
                                             from reservation_event z
                                             where z.account = r.account and z.reservation_id = r.id
                                               and z.liability = 0), 0)),
                r.updated_at) as "since!"
from reservation r
cross join (select ledger_clock() as at) clock
cross join lateral (select reasons(open_parts(r, clock.at)) as why) p
where r.state in ('active', 'cancelling', 'fenced')
  and p.why <> '{}'
  and ($1::text[] is null or r.account = any ($1))
  and ($2::text is null or $2 = any (p.why))
  and ($3::uuid is null or r.id > $3)
order by r.id
limit $4
