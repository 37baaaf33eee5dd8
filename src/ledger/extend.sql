-- Extend: raise ceilings, each if every enforcing budget of the reservation has
-- room for the difference. The new ceiling is absolute, so repeating it changes
-- nothing. Charged to the reservation's own periods, also when they have ended.
--
-- Lock order: reservations by id, then budget periods by id. Every new value is
-- computed from the locked rows. The policy in force is read from its tables in
-- the same statement: what has been retired takes nothing new.
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::text[], $4::numeric[], $5::text[])
         with ordinality as ask (account, id, token, ceiling, actor, n)),
-- What is locked is named by arrays, never by a join or an IN (SELECT): when a
-- row had to be waited for, the recheck of such a join can lose it.
locked_reservation as materialized (
    select r
    from reservation r
    where r.account = any ($1) and r.id = any ($2)
    order by r.id
    for no key update of r),
locked as materialized (
    select a.n, a.token, a.ceiling, a.actor, l.r
    from ask a
    join locked_reservation l on (l.r).account = a.account and (l.r).id = a.id),
period as materialized (
    select p.*
    from budget_period p
    where p.account = any (array(select (l.r).account from locked l) || ''::text)
      and p.id = any (array(select unnest((l.r).period_ids) from locked l))
    order by p.id
    for no key update of p),
-- Read after the last lock was granted: the count comes first, and must be all.
decided_at as materialized (
    select all_of(count(*), (select count(distinct id) from locked l cross join unnest((l.r).period_ids) id)) as periods,
           ledger_clock() as at,
           -- What the policy's tables say below is of when the statement began.
           all_of(policy_version_in_force(), (select version from policy_state)) as policy_version
    from period),
-- The budgets of each reservation as the policy in force has them.
charge as materialized (
    select l.n, p.account as owner, p.id as period_id, p.budget, p.member, p.limit_units, p.available,
           p.reserved, p.reserved + p.liability as held, p.carried, p.ends_at, p.closed_at,
           coalesce(b.mode, o.mode, 'enforce') as mode,
           room_of(coalesce(b.mode, o.mode, 'enforce') = 'enforce', p.available, p.reserved) as room,
           -- It is the account's still, and would be charged for the same work today.
           coalesce(b.retired_at is null and b.unit = (l.r).unit
                        and coalesce(b.provider, (l.r).provider) = (l.r).provider
                        and coalesce(b.operation, (l.r).operation) = (l.r).operation,
                    o.retired_at is null and o.unit = (l.r).unit
                        and coalesce(o.provider, (l.r).provider) = (l.r).provider
                        and coalesce(o.provider_key, (l.r).provider_key) is not distinct from (l.r).provider_key
                        and coalesce(o.operation, (l.r).operation) = (l.r).operation,
                    false) as in_force
    from locked l
    join period p on p.id = any ((l.r).period_ids)
    left join account a on p.account <> '' and a.name = p.account
    left join budget b on b.plan = a.plan and b.name = p.budget
    left join pool o on p.account = '' and o.name = p.budget),
wanted as materialized (
    select l.n, l.r,
           greatest(l.ceiling, (l.r).ceiling) as ceiling,
           held_units('active', l.ceiling, (l.r).settled,
                      (l.r).in_flight + (l.r).unknown_units + (l.r).stated_outstanding)
               - (l.r).reserved - (l.r).liability as units,
           o.max_units, o.mode as operation_mode,
           case
               when (l.r).attempt_token is distinct from l.token then 'stale_attempt'
               when (l.r).state <> 'active' then 'not_active'
               when l.ceiling <= (l.r).ceiling then 'unchanged'
               when o.retired_at is not null or v.unit <> (l.r).unit then 'unknown_operation'
               when a.retired_at is not null then 'unknown_account'
               when exists (select from charge c where c.n = l.n and not c.in_force) then 'no_budget'
               when not exists (select from charge c where c.n = l.n and c.mode = 'enforce')
                    and not exists (select
                                    from plan p
                                    where p.name = a.plan and p.retired_at is null
                                      and (l.r).unit = any (p.unbounded)) then 'no_budget'
               when exists (select from charge c where c.n = l.n and c.closed_at is not null) then 'period_closed'
               when o.mode = 'enforce' and l.ceiling > o.max_units then 'too_expensive'
               when exists (select
                            from charge c
                            where c.n = l.n and c.mode = 'enforce' and c.limit_units > 0
                              and l.ceiling > c.limit_units) then 'over_a_whole_period'
               else 'fits'
           end as outcome
    from locked l
    join operation o on o.name = (l.r).operation
    join provider v on v.name = o.provider
    join account a on a.name = (l.r).account),
admitted as materialized (
    select unnest(admit(array_agg(c.n order by c.n, c.period_id),
                        array_agg(c.period_id order by c.n, c.period_id),
                        array_agg(w.units order by c.n, c.period_id),
                        array_agg(c.room order by c.n, c.period_id))) as n
    from wanted w
    join charge c on c.n = w.n
    where w.outcome = 'fits'
    union all
    select w.n
    from wanted w
    where w.outcome = 'fits' and not exists (select from charge c where c.n = w.n)),
verdict as materialized (
    select w.n, w.r, w.ceiling, w.units, w.max_units, w.operation_mode, l.actor,
           case
               when w.outcome <> 'fits' then w.outcome
               when w.n in (select n from admitted) then 'extended'
               when exists (select from charge c where c.n = w.n and c.mode = 'observe' and w.units > c.room)
                    and not exists (select from charge c where c.n = w.n and c.mode = 'enforce' and w.units > c.room)
                   then 'out_of_range'
               else 'budget_exhausted'
           end as outcome
    from wanted w
    join locked l on l.n = w.n),
kept as materialized (
    select k.n, k.r
    from (select array_agg(row (v.n, v.r, jsonb_build_object('ceiling', v.ceiling), 'extend', v.actor,
                                null, null)::reservation_change order by v.n) as asked
          from verdict v
          where v.outcome = 'extended') a
    cross join lateral keep(a.asked) k)
select v.n as "n!", v.outcome as "outcome!", d.at as "at!", v.max_units as "max_units!",
       v.operation_mode = 'observe' as "observing!",
       trim_scale(v.units)::text as "units!",
       reservation_json(coalesce(k.r, v.r)) as "record!: Json<Record>",
       reservation_periods(v.r) as "budgets!: Json<Vec<ChargedPeriod>>",
       (select coalesce(jsonb_agg(jsonb_build_object(
                   'pool', c.owner = '', 'budget', c.budget, 'member', c.member, 'enforcing', c.mode = 'enforce',
                   'period_id', c.period_id, 'ends_at', c.ends_at,
                   'limit', trim_scale(c.limit_units)::text, 'available', trim_scale(c.available)::text,
                   'held', trim_scale(c.held)::text, 'carried', trim_scale(c.carried)::text)
                   order by c.owner = '', c.budget, c.member), '[]')
        from charge c
        where c.n = v.n) as "charges!: Json<Vec<ChargeSeen>>"
from verdict v
cross join decided_at d
left join kept k on k.n = v.n
order by v.n
