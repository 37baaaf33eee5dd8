-- A reservation's entries never leave the budget periods that it was admitted in
-- (invariant 5), and every entry belongs to a period and, if it names one, to a
-- reservation that exist.
select format('journal entry %s of period %s: reservation %s version %s does not belong there',
              e.entry_no, e.period_id, e.reservation_id, e.reservation_version)
from journal_entry e
left join reservation r on r.account = e.reservation_account and r.id = e.reservation_id
where e.reservation_id is not null
  and (r.id is null or e.period_id <> all (r.period_ids) or e.reservation_version > r.version
       or e.account not in (r.account, ''))
union all
select format('journal entry %s belongs to period %s, which does not exist', e.entry_no, e.period_id)
from journal_entry e
where not exists (select from budget_period p where p.account = e.account and p.id = e.period_id)
union all
select format('reservation %s is charged to period %s, which does not exist', r.id, r.period_id)
from (select account, id, unnest(period_ids) as period_id from reservation) r
where not exists (select from budget_period p where p.id = r.period_id and p.account in (r.account, ''))
union all
-- Units are reserved, used and given back only for a reservation; what is for
-- none comes from a limit, a carry, or a person's adjustment.
select format('journal entry %s of period %s: %s of %s from %s to %s for no reservation',
              e.entry_no, e.period_id, e.event, trim_scale(e.amount), e.source, e.target)
from journal_entry e
where e.reservation_id is null and 'granted' not in (e.source, e.target) and e.event <> 'adjustment'
