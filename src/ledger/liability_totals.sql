-- What is open and needs somebody, in sums for each budget and reason.
select p.account as "account!", p.budget as "budget!", p.member as "member!", p.unit as "unit!",
       coalesce(sum((o.parts).overdue), 0) as "overdue!", coalesce(sum((o.parts).cancelled), 0) as "cancelled!",
       coalesce(sum((o.parts).unknown_calls), 0) as "unknown_calls!",
       coalesce(sum((o.parts).earlier_attempts), 0) as "earlier_attempts!",
       coalesce(sum((o.parts).fenced), 0) as "fenced!", sum(o.liability) as "liability!"
from (select r.account, r.liability, unnest(r.period_ids) as period_id, open_parts(r, clock.at) as parts
      from reservation r
      cross join (select ledger_clock() as at) clock
      where r.state in ('active', 'cancelling', 'fenced')
        and ($1::text[] is null or r.account = any ($1))) o
join budget_period p on p.id = o.period_id and p.account in (o.account, '')
where reasons(o.parts) <> '{}'
group by p.account, p.budget, p.member, p.unit
order by p.account = '', p.account, p.budget, p.member, p.unit
