-- Extend: raise ceilings, each if every enforcing budget of the reservation has
-- room for the difference. The new ceiling is absolute, so repeating it changes
-- nothing. Items are decided in the order given; no reservation is in it twice.
--
-- What is refused, or changes nothing, as things are when the statement begins takes
-- no lock and writes nothing. The rest is decided again under the locks.
--
-- Lock order: reservations by id, then budget periods by id (in
-- decide_extensions(), which holds the rules of an extension). Every new value is
-- computed from the locked rows.
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::text[], $4::numeric[], $5::text[], $6::uuid[])
         with ordinality as ask (account, id, token, ceiling, actor, key_id, n)),
seen as materialized (
    select a.*, r,
           case
               when a.key_id in (select void_keys($6)) then 'unauthenticated'
               when r.attempt_token is distinct from a.token then 'stale_attempt'
               when r.state <> 'active' then 'not_active'
               when a.ceiling <= r.ceiling then 'unchanged'
               else 'asked'
           end as outcome
    from ask a
    join reservation r on r.account = a.account and r.id = a.id),
look as materialized (
    select l.refused, array(select c.n from unnest(l.candidates) c) as fit
    from (select array_agg(row (s.n, s.r, s.ceiling)::extension order by s.n) as asked
          from seen s
          where s.outcome = 'asked'
          having count(*) > 0) a
    cross join lateral look_at_extensions(a.asked) l),
locked as materialized (
    select s.n, s.token, s.ceiling, r
    from (select array_agg(s.account) as accounts, array_agg(s.id) as ids
          from seen s
          where s.n = any (array(select unnest(fit) from look))
          having count(*) > 0) f
    cross join lateral lock_reservations(f.accounts, f.ids) r
    join seen s on s.account = r.account and s.id = r.id),
wanted as materialized (
    select l.*,
           case
               when (l.r).attempt_token is distinct from l.token then 'stale_attempt'
               when (l.r).state <> 'active' then 'not_active'
               when l.ceiling <= (l.r).ceiling then 'unchanged'
               else 'asked'
           end as outcome
    from locked l),
decided as materialized (
    select d.*
    from look
    cross join (select coalesce(array_agg(row (w.n, w.r, w.ceiling)::extension order by w.n), '{}') as asked
                from wanted w
                where w.outcome = 'asked') a
    cross join lateral decide_extensions(a.asked, look.refused) d),
verdict as materialized (
    select s.n, coalesce(w.r, s.r) as r, s.ceiling, s.actor, coalesce(d.outcome, w.outcome, s.outcome) as outcome,
           d.units, d.max_units, d.observing, d.charges
    from seen s
    left join wanted w on w.n = s.n
    left join decided d on d.n = s.n),
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
