-- Buckets are never NaN, and only available may be negative (invariant 3); every
-- transfer is of a positive amount.
select format('%s %s period %s: available %s, reserved %s, liability %s, settled %s: not all are amounts',
              coalesce(nullif(account, ''), 'pool'), budget, id, available, reserved, liability, settled)
from budget_period
where 'NaN' in (available, reserved, liability, settled, granted, limit_units, carried)
   or least(reserved, liability, settled, limit_units, carried) < 0
union all
select format('journal entry %s of period %s: the amount %s is not above zero, or a balance is no number',
              entry_no, period_id, amount)
from journal_entry
where amount <= 0 or 'NaN' in (amount, available, reserved, liability, settled)
union all
select format('reservation %s: not all of its amounts are amounts', id)
from reservation
where 'NaN' in (estimate, ceiling, settled, in_flight, unknown_units, stated_outstanding, attempt_settled,
                reserved, liability)
   or least(estimate, ceiling, settled, in_flight, unknown_units, stated_outstanding, attempt_settled,
            reserved, liability) < 0
union all
select format('call %s of reservation %s: not all of its amounts are amounts', key, reservation_id)
from call
where 'NaN' in (units, coalesce(actual, 0)) or least(units, coalesce(actual, 0)) < 0
union all
select format('late usage %s: its amount is not an amount', id)
from late_usage
where 'NaN' in (units, recorded) or least(units, recorded) < 0
