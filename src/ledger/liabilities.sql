-- What is open and needs somebody, by age: what has been open for longest is first.
-- Each part of what such a reservation holds has one reason, so that the parts add
-- up; liability_totals.sql sums the same parts.
with clock as materialized (
    select ledger_clock() as at),
open as (
    select r, c.at, reasons(open_parts(r, c.at)) as why
    from reservation r
    cross join clock c
    where r.state in ('active', 'cancelling', 'fenced')
      and ($1::text[] is null or r.account = any ($1))),
aged as (
    select o.*,
           coalesce(least(case when 'overdue' = any (o.why) then (o.r).lease_expires_at end, (o.r).liability_since),
                    (o.r).updated_at) as since
    from open o
    where o.why <> '{}' and ($2::text is null or $2 = any (o.why)))
select reservation_json(a.r) as "record!: Json<Record>",
       reservation_periods(a.r) as "budgets!: Json<Vec<ChargedPeriod>>",
       a.at as "at!", a.why as "why!", a.since as "since!"
from aged a
where $3::timestamptz is null or (a.since, (a.r).id) > ($3, $4::uuid)
order by a.since, (a.r).id
limit $5
