-- Extend: raise ceilings, each if every enforcing budget of the reservation has
-- room for the difference. The new ceiling is absolute, so repeating it changes
-- nothing. Items are decided in the order given; no reservation is in it twice.
--
-- Lock order: reservations by id, then budget periods by id (in
-- decide_extensions(), which holds the rules of an extension). Every new value is
-- computed from the locked rows. The reservation is locked also for a refusal: of
-- two copies racing the second must not be refused for want of the room that the
-- first one took. The periods are not.
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::text[], $4::numeric[], $5::text[], $6::uuid[])
         with ordinality as ask (account, id, token, ceiling, actor, key_id, n)),
locked as materialized (
    select a.n, a.token, a.ceiling, a.actor, a.key_id, r
    from ask a
    join lock_reservations($1, $2) r on r.account = a.account and r.id = a.id),
wanted as materialized (
    select l.*,
           case
               when l.key_id in (select void_keys($6)) then 'unauthenticated'
               when (l.r).attempt_token is distinct from l.token then 'stale_attempt'
               when (l.r).state <> 'active' then 'not_active'
               when l.ceiling <= (l.r).ceiling then 'unchanged'
               else 'asked'
           end as outcome
    from locked l),
decided as materialized (
    select d.*
    from (select array_agg(row (w.n, w.r, w.ceiling)::extension order by w.n) as asked
          from wanted w
          where w.outcome = 'asked'
          having count(*) > 0) a
    cross join lateral look_at_extensions(a.asked) l
    cross join lateral decide_extensions(l.candidates, l.refused) d),
verdict as materialized (
    select w.n, w.r, w.ceiling, w.actor, coalesce(d.outcome, w.outcome) as outcome,
           d.units, d.max_units, d.observing, d.charges
    from wanted w
    left join decided d on d.n = w.n),
kept as materialized (
    select k.n, k.r
    from (select array_agg(row (v.n, v.r, jsonb_build_object('ceiling', v.ceiling), 'extend', v.actor,
                                null, null)::reservation_change order by v.n) as asked
          from verdict v
          where v.outcome = 'extended'
          having count(*) > 0) a
    cross join lateral keep(a.asked) k)
select v.n as "n!", v.outcome as "outcome!", ledger_clock() as "at!",
       reservation_json(coalesce(k.r, v.r)) as "record!: Json<Record>",
       reservation_periods(v.r) as "budgets!: Json<Vec<ChargedPeriod>>",
       case when v.charges is null then '{}' else jsonb_build_object(
           'extension', jsonb_build_object(
               'ceiling', trim_scale(v.ceiling)::text, 'units', trim_scale(v.units)::text,
               'max_units', trim_scale(v.max_units)::text, 'observing', v.observing, 'charges', v.charges))
       end as "seen!: Json<Seen>"
from verdict v
left join kept k on k.n = v.n
order by v.n
