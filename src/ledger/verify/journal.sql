-- Every budget period with its journal entries, in the order of entry numbers: from
-- its newest checkpoint on, if its first entries are archived. The program cannot
-- read NaN: where a column holds it, it reads nothing.
select p.account, p.id as period_id, p.budget,
       nullif(p.available, 'NaN') as period_available, nullif(p.reserved, 'NaN') as period_reserved,
       nullif(p.liability, 'NaN') as period_liability, nullif(p.settled, 'NaN') as period_settled,
       nullif(p.granted, 'NaN') as period_granted, nullif(p.limit_units, 'NaN') as period_limit,
       nullif(p.carried, 'NaN') as period_carried,
       p.entry_no as period_entry_no, p.last_entry_at as period_last_entry_at,
       c.entry_no as from_entry_no, c.at as from_at,
       nullif(c.available, 'NaN') as from_available, nullif(c.reserved, 'NaN') as from_reserved,
       nullif(c.liability, 'NaN') as from_liability, nullif(c.settled, 'NaN') as from_settled,
       nullif(c.granted, 'NaN') as from_granted, nullif(c.limit_units, 'NaN') as from_limit,
       nullif(c.carried, 'NaN') as from_carried,
       e.entry_no, e.at, e.event, e.source, e.target, nullif(e.amount, 'NaN') as amount,
       nullif(e.available, 'NaN') as available, nullif(e.reserved, 'NaN') as reserved,
       nullif(e.liability, 'NaN') as liability, nullif(e.settled, 'NaN') as settled
from budget_period p
left join (select distinct on (account, period_id) *
           from journal_checkpoint
           order by account, period_id, month desc) c on c.account = p.account and c.period_id = p.id
left join journal_entry e
    on e.account = p.account and e.period_id = p.id and e.entry_no > coalesce(c.entry_no, 0)
order by p.account, p.id, e.entry_no
