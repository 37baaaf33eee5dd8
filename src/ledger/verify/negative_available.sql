-- available goes below zero only by an overrun, a lowered limit, an adjustment, a
-- carry, or in a budget that only observes: never by an admission of an
-- enforcing budget (invariant 3). A budget that observed at the time cannot be
-- told from the journal alone, so it is let pass if any policy says so.
select format('%s %s period %s: entry %s (%s) took available to %s',
              coalesce(nullif(p.account, ''), 'pool'), p.budget, p.id, e.entry_no, e.event, trim_scale(e.available))
from journal_entry e
join budget_period p on p.account = e.account and p.id = e.period_id
where e.event in ('reserve', 'extend')
  and e.source = 'available'
  and e.available < 0
  and not exists (select from policy_version v where v.source ~ '\mobserve\M')
