-- Brings every open period to the limit that the policy, just written, gives
-- it. Accounts that changed plan keep the periods that are open under names the
-- new plan also has. A limit for another kind of period begins with it,
-- when the open period ends. A lowered limit may make available negative: nothing
-- already admitted is taken back, nothing new is admitted.
--
-- Only periods whose limit changes are locked (only this changes limits, and it
-- holds the policy's lock): the others go on admitting.
--
-- The periods are named by an array, never by a join: when a row had to be waited
-- for, the recheck of a join can lose it.
with wanted as materialized (
    select p.account, p.id, coalesce((a.limits ->> p.budget)::numeric, b.limit_units) as limit_units
    from budget_period p
    join account a on a.name = p.account and a.retired_at is null
    join budget b on b.plan = a.plan and b.name = p.budget and b.retired_at is null
    where (p.ends_at is null or p.ends_at > ledger_clock())
      and p.period = b.period
      and p.limit_units <> coalesce((a.limits ->> p.budget)::numeric, b.limit_units)
    union all
    select p.account, p.id, o.limit_units
    from budget_period p
    join pool o on p.account = '' and o.name = p.budget and o.retired_at is null
    where (p.ends_at is null or p.ends_at > ledger_clock())
      and p.period = o.period
      and p.limit_units <> o.limit_units),
locked as materialized (
    select p.account, p.id, p.limit_units
    from budget_period p
    where p.account = any (array(select w.account from wanted w)) and p.id = any (array(select w.id from wanted w))
    order by p.id
    for no key update of p),
changed as materialized (
    select l.account, l.id, w.limit_units - l.limit_units as change
    from locked l
    join wanted w on w.account = l.account and w.id = l.id
    where all_of((select count(*) from locked), (select count(*) from wanted)) >= 0)
select post(array_agg(row (1, c.account, c.id, case when c.change > 0 then 'limit_raised' else 'limit_lowered' end, $1,
                           c.change, 0, 0, 0, c.change, 0, null, null, null, $2)::posting), (select count(*) from wanted))
from changed c
having count(*) > 0
