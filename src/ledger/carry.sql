-- Give back: bring what the newest period of a carry_forward budget carries down
-- to what earlier periods still hold. Repeatable: run after a release in an
-- ended period, and again before a refusal, so that a crash between the release
-- and this is made good.
--
-- What earlier periods hold may have changed since the statement began; it was
-- true at that instant, and carried only ever comes down, so a serial order with
-- this statement at that instant exists.
with newest as materialized (
    select p.*
    from budget_period p
    where p.account = $1 and p.budget = $2 and p.member = $3
    order by p.ordinal desc
    limit 1
    for no key update of p),
give as (
    select n.account, n.id, n.carried - least(n.carried, coalesce(sum(p.reserved + p.liability), 0)) as units
    from newest n
    left join budget_period p
        on p.account = n.account and p.budget = n.budget and p.member = n.member and p.ordinal < n.ordinal
    where n.carried > 0
    group by n.account, n.id, n.carried),
posted as materialized (
    select post(array_agg(row (1, g.account, g.id, 'given_back', $4, g.units, 0, 0, 0, 0, -g.units,
                               null, null, null, null)::posting), count(*))
    from give g
    where g.units > 0
    having count(*) > 0)
select count(*) as "given!"
from posted
