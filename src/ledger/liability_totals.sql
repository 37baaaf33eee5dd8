-- What is open and needs somebody, in sums for each budget and reason. Over many
-- periods they can be larger than any amount, so they are told as text.
select p.account as "account!", p.budget as "budget!", p.member as "member!", p.unit as "unit!",
       trim_scale(coalesce(sum((o.parts).overdue), 0))::text as "overdue!", trim_scale(coalesce(sum((o.parts).cancelled), 0))::text as "cancelled!",
       trim_scale(coalesce(sum((o.parts).unknown_calls), 0))::text as "unknown_calls!",
       trim_scale(coalesce(sum((o.parts).earlier_attempts), 0))::text as "earlier_attempts!",
       trim_scale(coalesce(sum((o.parts).fenced), 0))::text as "fenced!", trim_scale(sum(o.liability))::text as "liability!"
from (select r.account, r.liability, unnest(r.period_ids) as period_id, open_parts(r, clock.at) as parts
      from reservation r
      cross join (select ledger_clock() as at) clock
      where r.state in ('active', 'cancelling', 'fenced')
        and ($1::text[] is null or r.account = any ($1))) o
join budget_period p on p.id = o.period_id and p.account in (o.account, '')
where reasons(o.parts) <> '{}'
group by p.account, p.budget, p.member, p.unit
order by p.account = '', p.account, p.budget, p.member, p.unit
