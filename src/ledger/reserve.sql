-- Reserve: admit new reservations, each if every enforcing budget it is charged
-- to has room. Items are decided in the order given. The caller gives no key twice
-- in one batch.
--
-- What makes it safe (each was measured to fail the other way round):
--   * The guard reads only columns of rows that this statement has locked, never
--     a sum over child rows, which would keep its old snapshot after the wait.
--   * The reservation is a plain insert: of two copies racing with one key the
--     second raises 23505 on reservation_key and its whole statement rolls back,
--     so the budget is never charged without a reservation behind it.
--   * Periods are locked in the order of their ids, before anything is decided.
--   * A period must still be open when the lock has been waited for, by the
--     clock and not by the time the statement began.
--   * What is locked is named by arrays, never by a join or an IN (SELECT): when a
--     row had to be waited for, the recheck of such a join can lose it. all_of()
--     makes sure that nothing was lost.
--   * A refusal takes no lock and writes nothing: what the statement sees when it
--     begins is a valid state to refuse on. Before it refuses, the key is looked up
--     anew (taken_keys() sees what was committed a moment ago), because a racing
--     copy of the same job may have taken the last room.
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::text[], $4::jsonb[], $5::text[], $6::integer[], $7::text[], $8::text[],
                $9::text[], $10::text[], $11::text[], $12::numeric[], $13::text[], $14::text[], $15::integer[],
                $16::text[], $17::jsonb[], $18::text[], $26::uuid[])
         with ordinality
         as ask (account, id, idempotency_key, request, operation, operation_revision, provider, enforcement,
                 unit, member, provider_key, estimate, holder, token, lease_seconds,
                 reference, labels, actor, key_id, n)),
begun as materialized (
    select ledger_clock() as at),
-- The open period of every budget that each item is charged to, as far as it
-- has been opened.
charge as materialized (
    select c.n, c.owner, c.budget, c.member, c.enforcing, c.opens_with, p.id as period_id, p.starts_at, p.ends_at,
           p.limit_units, p.carried, p.available, p.reserved + p.liability as held
    from unnest($19::bigint[], $20::text[], $21::text[], $22::text[], $23::boolean[], $25::numeric[])
             as c (n, owner, budget, member, enforcing, opens_with)
    cross join begun
    left join lateral (
        select *
        from budget_period p
        where p.account = c.owner and p.budget = c.budget and p.member = c.member and p.starts_at <= begun.at
        order by p.starts_at desc
        limit 1) p on p.ends_at is null or p.ends_at > begun.at),
-- Decided without a lock.
look as materialized (
    select a.n, a.account, a.key_id, a.estimate,
           case
               when a.key_id in (select void_keys($26)) then 'unauthenticated'
               when (select version from policy_state) <> $24 then 'policy_changed'
               when exists (select
                            from reservation r
                            where r.account = a.account and r.idempotency_key = a.idempotency_key) then 'known'
               -- Before a period is opened for it.
               when bool_or(c.enforcing and coalesce(c.limit_units, c.opens_with) > 0
                            and a.estimate > coalesce(c.limit_units, c.opens_with)) then 'too_expensive'
               when bool_or(c.n is not null and c.period_id is null) then 'period_missing'
               when bool_or(c.enforcing and a.estimate > 0 and a.estimate > c.available) then 'budget_exhausted'
               else 'fits'
           end as outcome
    from ask a
    left join charge c on c.n = a.n
    group by a.n, a.account, a.estimate, a.idempotency_key, a.key_id),
locked as materialized (
    select p.*
    from budget_period p
    where p.account = any (array(select c.owner from charge c join look l on l.n = c.n where l.outcome = 'fits'))
      and p.id = any (array(select c.period_id from charge c join look l on l.n = c.n where l.outcome = 'fits'))
    order by p.id
    for no key update of p),
-- Read after the last lock was granted, which may have been waited for: the time,
-- and the policy in force. The count comes first.
decided as materialized (
    select all_of(count(*), (select count(distinct c.period_id)
                             from charge c
                             join look l on l.n = c.n
                             where l.outcome = 'fits')) as periods,
           ledger_clock() as at,
           policy_version_in_force() as policy_version
    from locked),
-- Whose key has been revoked meanwhile takes no room from those behind it. (Asked in
-- the select list, so that it is asked of rows that had the locks.)
valid as materialized (
    select l.n, l.key_id in (select void_keys($26)) is not true as valid
    from look l
    cross join decided d
    where l.outcome = 'fits'),
room as materialized (
    select c.n, c.period_id, c.enforcing, l.estimate, p.ends_at <= d.at as ended,
           room_of(c.enforcing, p.available, p.reserved) as room
    from charge c
    join look l on l.n = c.n and l.outcome = 'fits'
    join locked p on p.account = c.owner and p.id = c.period_id
    cross join decided d),
admitted as materialized (
    select unnest(admit(array_agg(r.n order by r.n, r.period_id),
                        array_agg(r.period_id order by r.n, r.period_id),
                        array_agg(r.estimate order by r.n, r.period_id),
                        array_agg(r.room order by r.n, r.period_id))) as n
    from room r
    where r.n not in (select n from room where ended) and r.n in (select n from valid where valid)
    union all
    -- Nothing bounds it, and the policy says that nothing need.
    select l.n
    from look l
    where l.outcome = 'fits' and not exists (select from charge c where c.n = l.n)),
decision as materialized (
    select l.n, l.estimate,
           case
               when l.outcome <> 'fits' then l.outcome
               when l.n in (select n from valid where not valid) then 'unauthenticated'
               when d.policy_version <> $24 then 'policy_changed'
               when l.n in (select n from room where ended) then 'period_missing'
               when l.n in (select n from admitted) then 'admitted'
               when l.n in (select n from room where not enforcing and estimate > room)
                    and l.n not in (select n from room where enforcing and estimate > room) then 'out_of_range'
               else 'budget_exhausted'
           end as outcome
    from look l
    cross join decided d),
taken as materialized (
    select k.n
    from (select array_agg(a.n) as items, array_agg(a.account) as accounts, array_agg(a.idempotency_key) as keys
          from ask a
          join decision d on d.n = a.n and d.outcome in ('budget_exhausted', 'too_expensive')
          having count(*) > 0) refused
    cross join lateral taken_keys(refused.items, refused.accounts, refused.keys) k (n)),
verdict as materialized (
    select d.n, d.estimate, case when d.n in (select n from taken) then 'known' else d.outcome end as outcome
    from decision d),
charged as materialized (
    select c.n, array_agg(c.period_id order by c.period_id) as period_ids
    from charge c
    group by c.n),
new_reservation as (
    insert into reservation (account, id, idempotency_key, request, operation, operation_revision, provider,
                             enforcement, unit, member, provider_key, period_ids, policy_version, estimate,
                             reference, labels, created_by, created_at, updated_at, state, ceiling, reserved,
                             attempt_number, attempt_holder, attempt_token, lease_expires_at)
    select a.account, a.id, a.idempotency_key, a.request, a.operation, a.operation_revision, a.provider,
           a.enforcement, a.unit, a.member, a.provider_key,
           coalesce(c.period_ids, '{}'), $24, a.estimate, a.reference, a.labels, a.actor, d.at, d.at, 'active',
           a.estimate, a.estimate, 1, a.holder, a.token, d.at + make_interval(secs => a.lease_seconds)
    from ask a
    join verdict v on v.n = a.n and v.outcome = 'admitted'
    left join charged c on c.n = a.n
    cross join decided d
    order by a.account, a.idempotency_key
    returning account, id),
new_event as (
    insert into reservation_event (account, reservation_id, version, event, at, actor, state,
                                   ceiling, settled, reserved, liability, attempt_number)
    select a.account, a.id, 1, 'reserve', d.at, a.actor, 'active', a.estimate, 0, a.estimate, 0, 1
    from ask a
    join verdict v on v.n = a.n and v.outcome = 'admitted'
    cross join decided d),
posted as materialized (
    select post(array_agg(row (v.n, c.owner, c.period_id, 'reserve', a.actor, -a.estimate, a.estimate, 0, 0, 0, 0,
                               a.account, a.id, 1, null)::posting order by c.n, c.period_id),
                (select count(*)
                 from charge c
                 join verdict v on v.n = c.n and v.outcome = 'admitted'
                 where v.estimate > 0))
    from ask a
    join verdict v on v.n = a.n and v.outcome = 'admitted'
    join charge c on c.n = a.n
    where a.estimate > 0
    having count(*) > 0),
-- Each item saw its budgets, as they were when it was decided (under the lock, or
-- when the statement began), less what those before it in this statement took.
seen as materialized (
    select c.n,
           jsonb_agg(jsonb_build_object(
               'pool', c.owner = '', 'budget', c.budget, 'member', c.member, 'enforcing', c.enforcing,
               'period_id', c.period_id, 'starts_at', c.starts_at, 'ends_at', c.ends_at,
               'limit', trim_scale(coalesce(p.limit_units, c.limit_units, c.opens_with))::text,
               'available', trim_scale(coalesce(p.available, c.available) - c.taken)::text,
               'held', trim_scale(coalesce(p.reserved + p.liability, c.held) + c.taken)::text,
               'carried', trim_scale(coalesce(p.carried, c.carried))::text)
               order by c.owner = '', c.budget, c.member) as charges
    from (select c.*, coalesce(sum(v.estimate) filter (where v.outcome = 'admitted') over before, 0) as taken
          from charge c
          join verdict v on v.n = c.n
          window before as (partition by c.owner, c.period_id order by c.n
                            rows between unbounded preceding and 1 preceding)) c
    join look l on l.n = c.n
    left join locked p on l.outcome = 'fits' and p.account = c.owner and p.id = c.period_id
    group by c.n)
select v.n as "n!", v.outcome as "outcome!", d.at as "at!",
       coalesce(s.charges, '[]') as "charges!: Json<Vec<ChargeSeen>>"
from verdict v
left join seen s on s.n = v.n
cross join decided d
cross join (select count(*) from posted) written
order by v.n
