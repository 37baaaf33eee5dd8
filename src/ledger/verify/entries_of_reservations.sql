-- A reservation's entries sum, in each of its periods, to its settled, reserved
-- and liability (invariant 4; adjustments apart).
select format('reservation %s in period %s: settled %s reserved %s liability %s, its entries make %s, %s, %s',
              r.id, r.period_id, trim_scale(r.settled), trim_scale(r.reserved), trim_scale(r.liability),
              trim_scale(coalesce(e.settled, 0)), trim_scale(coalesce(e.reserved, 0)),
              trim_scale(coalesce(e.liability, 0)))
from (select account, id, settled, reserved, liability, unnest(period_ids) as period_id
      from reservation) r
left join (select reservation_account, reservation_id, period_id,
                  sum(case 'settled' when target then amount when source then -amount else 0 end) as settled,
                  sum(case 'reserved' when target then amount when source then -amount else 0 end) as reserved,
                  sum(case 'liability' when target then amount when source then -amount else 0 end) as liability
           from journal_entry
           where reservation_id is not null and event <> 'adjustment'
           group by 1, 2, 3) e
    on e.reservation_account = r.account and e.reservation_id = r.id and e.period_id = r.period_id
where r.settled <> coalesce(e.settled, 0)
   or r.reserved <> coalesce(e.reserved, 0)
   or r.liability <> coalesce(e.liability, 0)
