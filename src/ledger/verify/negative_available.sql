-- available goes below zero only by an overrun, a lowered limit, an adjustment, a
-- carry, or in a budget that only observes: never by an admission of an
-- enforcing budget (invariant 3). Whether a budget observed at the time is not in
-- the journal; one that ever did, by any policy, is let pass.
with observing as (
    select c ->> 'kind' as kind, c ->> 'name' as name
    from policy_version v
    cross join jsonb_array_elements(v.changes) c
    where c ->> 'kind' in ('budget', 'pool') and 'observe' in (c -> 'before' ->> 'mode', c -> 'after' ->> 'mode'))
select format('%s %s period %s: entry %s (%s) took available to %s',
              coalesce(nullif(p.account, ''), 'pool'), p.budget, p.id, e.entry_no, e.event, trim_scale(e.available))
from journal_entry e
join budget_period p on p.account = e.account and p.id = e.period_id
where e.event in ('reserve', 'extend', 'call_admitted')
  and e.source = 'available'
  and e.available < 0
  and not exists (select
                  from observing o
                  where case o.kind
                            when 'pool' then p.account = '' and o.name = p.budget
                            else p.account <> '' and right(o.name, length(p.budget) + 1) = '/' || p.budget
                        end)
