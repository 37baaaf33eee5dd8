-- A reservation's entries sum, in each of its periods, to its settled, reserved
-- and liability (invariant 4; adjustments apart). What is archived of them is in the
-- sums that the archive left behind; of a reservation that had ended before the
-- archived months did, it left none.
with newest as (
    select account, period_id, max(entry_no) as entry_no
    from journal_checkpoint
    group by 1, 2),
entry as (
    select e.reservation_account, e.reservation_id, e.period_id,
           case 'settled' when e.target then e.amount when e.source then -e.amount else 0 end as settled,
           case 'reserved' when e.target then e.amount when e.source then -e.amount else 0 end as reserved,
           case 'liability' when e.target then e.amount when e.source then -e.amount else 0 end as liability
    from journal_entry e
    left join newest n on n.account = e.account and n.period_id = e.period_id
    where e.reservation_id is not null and e.event <> 'adjustment' and e.entry_no > coalesce(n.entry_no, 0)
    union all
    select account, reservation_id, period_id, settled, reserved, liability
    from reservation_checkpoint)
select format('reservation %s in period %s: settled %s reserved %s liability %s, its entries make %s, %s, %s',
              r.id, r.period_id, trim_scale(r.settled), trim_scale(r.reserved), trim_scale(r.liability),
              trim_scale(coalesce(e.settled, 0)), trim_scale(coalesce(e.reserved, 0)),
              trim_scale(coalesce(e.liability, 0)))
from (select account, id, settled, reserved, liability, unnest(period_ids) as period_id
      from reservation
      where closed_at is null
         or closed_at >= (select coalesce(max(ends_at), '-infinity')
                          from archived_month
                          where of_table = 'journal_entry')) r
left join (select reservation_account, reservation_id, period_id,
                  sum(settled) as settled, sum(reserved) as reserved, sum(liability) as liability
           from entry
           group by 1, 2, 3) e
    on e.reservation_account = r.account and e.reservation_id = r.id and e.period_id = r.period_id
where r.settled <> coalesce(e.settled, 0)
   or r.reserved <> coalesce(e.reserved, 0)
   or r.liability <> coalesce(e.liability, 0)
