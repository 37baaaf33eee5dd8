-- Renew: move the end of the lease of the current attempt. It changes nothing else:
-- no version, no event, no balance. The answer tells the holder if the job was
-- cancelled; the lease of what is not active any more means nothing and stays.
--
-- Only the reservation is locked.
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::text[], $4::integer[], $5::uuid[])
         with ordinality as ask (account, id, token, lease_seconds, key_id, n)),
verdict as materialized (
    select a.n, a.lease_seconds, r,
           case
               when a.key_id in (select void_keys($5)) then 'unauthenticated'
               when r.attempt_token is distinct from a.token then 'stale_attempt'
               else 'renewed'
           end as outcome
    from ask a
    join lock_reservations($1, $2) r on r.account = a.account and r.id = a.id),
leased as materialized (
    select v.n, set_lease(v.r, ledger_clock() + make_interval(secs => v.lease_seconds)) as r
    from verdict v
    where v.outcome = 'renewed' and (v.r).state = 'active')
select v.n as "n!", v.outcome as "outcome!", ledger_clock() as "at!",
       reservation_json(coalesce(l.r, v.r)) as "record!: Json<Record>",
       reservation_periods(v.r) as "budgets!: Json<Vec<ChargedPeriod>>",
       '{}'::jsonb as "seen!: Json<Seen>"
from verdict v
left join leased l on l.n = v.n
order by v.n
