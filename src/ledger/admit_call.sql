-- Admit calls: each if what the reservation has settled, what is outstanding and
-- this call stay within its ceiling, or if the ceiling may be raised to that and
-- the caller asked for it. Counted when admitted, not when answered.
--
-- Lock order: reservations by id, then, only to raise a ceiling, budget periods by
-- id (in decide_extensions() and keep()). A call within the ceiling changes no
-- bucket and locks no period: the room is the job's already. Calls are read under
-- their reservation's lock, by a function that sees them as they are now.
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::uuid[], $6::numeric[], $7::boolean[], $8::text[],
                $9::uuid[])
         with ordinality as ask (account, id, token, key, call_id, units, extend, actor, key_id, n)),
locked as materialized (
    select a.n, a.token, a.key, a.call_id, a.units, a.extend, a.actor, a.key_id, r
    from ask a
    join lock_reservations($1, $2) r on r.account = a.account and r.id = a.id),
known as materialized (
    select l.*, call_now((l.r).account, (l.r).id, l.key) as c,
           (l.r).settled + outstanding_units(l.r) + l.units as needs
    from locked l),
wanted as materialized (
    select k.*,
           case
               when k.key_id in (select void_keys($9)) then 'unauthenticated'
               when (k.r).attempt_token is distinct from k.token then 'stale_attempt'
               when (k.c).attempt_number <> (k.r).attempt_number then 'call_key_taken'
               when (k.c).units <> k.units then 'key_reused'
               when (k.c).units = k.units then 'repeated'
               when (k.r).state <> 'active' then 'not_active'
               when (k.r).enforcement <> 'calls' then 'not_by_calls'
               when k.needs <= (k.r).ceiling then 'admitted'
               when k.extend and k.needs > 9999999999999999.999999999999 then 'out_of_range'
               when k.extend then 'asked'
               else 'ceiling_reached'
           end as outcome
    from known k),
decided as materialized (
    select d.*
    from (select array_agg(row (w.n, w.r, w.needs)::extension order by w.n) as asked
          from wanted w
          where w.outcome = 'asked'
          having count(*) > 0) a
    cross join lateral look_at_extensions(a.asked) l
    cross join lateral decide_extensions(l.candidates, l.refused) d),
verdict as materialized (
    select w.n, w.r, w.c, w.key, w.call_id, w.units, w.actor, w.needs,
           case when d.outcome = 'extended' then 'admitted' else coalesce(d.outcome, w.outcome) end as outcome,
           d.outcome = 'extended' as extended, d.units as more, d.max_units, d.observing, d.charges
    from wanted w
    left join decided d on d.n = w.n),
kept as materialized (
    select k.n, k.r
    from (select array_agg(row (v.n, v.r,
                                jsonb_build_object('in_flight', (v.r).in_flight + v.units,
                                                   'attempt_in_flight', (v.r).attempt_in_flight + v.units,
                                                   'ceiling', case when v.extended then v.needs else (v.r).ceiling end),
                                'call_admitted', v.actor,
                                jsonb_build_object('call', v.key, 'units', trim_scale(v.units)::text),
                                null)::reservation_change order by v.n) as asked
          from verdict v
          where v.outcome = 'admitted'
          having count(*) > 0) a
    cross join lateral keep(a.asked) k),
inserted as (
    insert into call as t (account, reservation_id, key, id, attempt_number, state, units, admitted_at)
    select (k.r).account, (k.r).id, v.key, v.call_id, (k.r).attempt_number, 'in_flight', v.units, (k.r).updated_at
    from kept k
    join verdict v on v.n = k.n
    returning t as c)
select v.n as "n!", v.outcome as "outcome!", ledger_clock() as "at!",
       reservation_json(coalesce(k.r, v.r)) as "record!: Json<Record>",
       reservation_periods(v.r) as "budgets!: Json<Vec<ChargedPeriod>>",
       jsonb_build_object(
           'call', call_json(coalesce(i.c, v.c)),
           'extension', case when v.charges is not null then jsonb_build_object(
               'ceiling', trim_scale(v.needs)::text, 'units', trim_scale(v.more)::text,
               'max_units', trim_scale(v.max_units)::text, 'observing', v.observing, 'charges', v.charges)
           end) as "seen!: Json<Seen>"
from verdict v
left join kept k on k.n = v.n
left join inserted i on (i.c).account = (v.r).account and (i.c).reservation_id = (v.r).id and (i.c).key = v.key
order by v.n
