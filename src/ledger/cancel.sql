-- Cancel: everything that is not settled becomes liability at once, and no more is
-- admitted. Nothing is released: the worker may still be spending. What is not
-- active any more stays as it is.
--
-- Lock order: reservations by id, then budget periods by id (in keep()).
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::text[], $4::text[])
         with ordinality as ask (account, id, reason, actor, n)),
verdict as materialized (
    select a.n, a.reason, a.actor, r, case when r.state = 'active' then 'cancelled' else 'unchanged' end as outcome
    from ask a
    join lock_reservations($1, $2) r on r.account = a.account and r.id = a.id),
kept as materialized (
    select k.n, k.r
    from (select array_agg(row (v.n, v.r, jsonb_build_object('state', 'cancelling'), 'cancel', v.actor,
                                jsonb_strip_nulls(jsonb_build_object('reason', v.reason)),
                                v.reason)::reservation_change order by v.n) as asked
          from verdict v
          where v.outcome = 'cancelled'
          having count(*) > 0) a
    cross join lateral keep(a.asked) k)
select v.n as "n!", v.outcome as "outcome!", ledger_clock() as "at!",
       reservation_json(coalesce(k.r, v.r)) as "record!: Json<Record>",
       reservation_periods(v.r) as "budgets!: Json<Vec<ChargedPeriod>>",
       '{}'::jsonb as "seen!: Json<Seen>"
from verdict v
left join kept k on k.n = v.n
order by v.n
