-- Checkpoints belong to periods and archived months that exist, and go on from one
-- another: together they stand for as many entries as were archived.
select format('the checkpoint of %s for period %s: %s', to_char(c.month, 'YYYY-MM'), c.period_id,
              case when m.month is null then 'no such month has been archived' else 'there is no such period' end)
from journal_checkpoint c
left join archived_month m on m.of_table = 'journal_entry' and m.month = c.month
left join budget_period p on p.account = c.account and p.id = c.period_id
where m.month is null or p.id is null
union all
select format('journal of %s: %s entries of %s periods are archived, its checkpoints make %s of %s',
              to_char(m.month, 'YYYY-MM'), m.row_count, m.periods, coalesce(c.entries, 0), coalesce(c.periods, 0))
from archived_month m
left join (select month, sum(entry_no - before) as entries, count(*) as periods
           from (select month, entry_no,
                        coalesce(lag(entry_no) over (partition by account, period_id order by month), 0) as before
                 from journal_checkpoint) c
           group by month) c on c.month = m.month
where m.of_table = 'journal_entry'
  and (m.row_count, m.periods) is distinct from (coalesce(c.entries, 0), coalesce(c.periods, 0))
union all
select format('the checkpoint of %s for reservation %s: there is no such reservation in that period',
              to_char(c.month, 'YYYY-MM'), c.reservation_id)
from reservation_checkpoint c
left join reservation r on r.account = c.account and r.id = c.reservation_id
where r.id is null or c.period_id <> all (r.period_ids)
