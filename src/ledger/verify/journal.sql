-- Every budget period with its journal entries, in the order of entry numbers.
select p.account, p.id as period_id, p.budget,
       p.available as period_available, p.reserved as period_reserved,
       p.liability as period_liability, p.settled as period_settled, p.granted as period_granted,
       p.limit_units as period_limit, p.carried as period_carried,
       p.entry_no as period_entry_no, p.last_entry_at as period_last_entry_at,
       e.entry_no, e.at, e.source, e.target, e.amount, e.available, e.reserved, e.liability, e.settled
from budget_period p
left join journal_entry e on e.account = p.account and e.period_id = p.id
order by p.account, p.id, e.entry_no
