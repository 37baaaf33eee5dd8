-- Give back: bring what the newest period of a carry_forward budget carries down
-- to what earlier periods still hold. Repeatable: run after a release in an
-- ended period, and again before a refusal, so that a crash between the release
-- and this is made good.
--
-- Nothing is locked unless there is something to give back. What earlier periods
-- hold may have changed since the statement began; it was true at that instant,
-- and carried only ever comes down, so a serial order with this statement at that
-- instant exists. A period that is no longer the newest when its lock is granted
-- gets nothing: whoever opened the next one has counted anew. Earlier periods are
-- read only if the newest one carries something.
with newest as materialized (
    select n.*
    from (select p.*
          from budget_period p
          where p.account = $1 and p.budget = $2 and p.member = $3 and p.starts_at <= (select ledger_clock())
          order by p.starts_at desc
          limit 1) n
    where n.carried > 0),
held as materialized (
    select coalesce(sum(p.reserved + p.liability), 0) as units
    from budget_period p
    where p.account = $1 and p.budget = $2 and p.member = $3
      and p.starts_at < (select n.starts_at from newest n)),
locked as materialized (
    select p.*
    from budget_period p
    where p.account = $1
      and p.id = any (array(select n.id from newest n cross join held h where n.carried > h.units))
    for no key update of p),
posted as materialized (
    select post(array_agg(row (1, l.account, l.id, 'given_back', $4, l.carried - h.units, 0, 0, 0, 0,
                               h.units - l.carried, null, null, null, null)::posting), 1)
    from locked l
    cross join held h
    where l.carried > h.units
      and l.ordinal = newest_period_ordinal($1, $2, $3)
    having count(*) > 0)
select count(*) as "given!"
from posted
