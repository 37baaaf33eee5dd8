-- Settle: replace what is reserved by actual usage, each reservation exactly
-- once. Usage is the cumulative actual of the current attempt. A final
-- settlement releases what is not needed and leaves what is still outstanding
-- (unknown calls, what earlier attempts may have spent) in a fenced reservation;
-- a progressive one keeps the room.
--
-- Lock order: reservations by id, then budget periods by id (in keep()). Every new
-- value is computed from the locked rows; of two settlements racing the second
-- finds the first one's result. Usage is never refused for want of room: what the
-- ceiling does not cover is an overrun, and available may become negative by it.
-- Usage that is refused because it comes too late is kept, in late_usage.
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::text[], $4::numeric[], $5::boolean[], $6::text[], $7::text[], $8::uuid[],
                $9::uuid[])
         with ordinality
         as ask (account, id, token, units, final, provider_request_id, actor, late_id, key_id, n)),
-- Left out, the usage is what the attempt's calls have been settled at.
locked as materialized (
    select a.n, a.token, coalesce(a.units, (r).attempt_settled) as units, a.units is not null as stated, a.final,
           a.provider_request_id, a.actor, a.late_id, a.key_id, r
    from ask a
    join lock_reservations($1, $2) r on r.account = a.account and r.id = a.id),
-- What the usage adds, and what stays of what this attempt may have spent: its
-- final report replaces that, progress uses it up.
wanted as materialized (
    select l.*,
           l.units - (l.r).attempt_settled as more,
           case
               when l.final then 0
               when (l.r).state = 'fenced' then greatest((l.r).attempt_stated + (l.r).attempt_settled - l.units, 0)
               else (l.r).attempt_stated
           end as attempt_stated
    from locked l),
after as materialized (
    select w.*,
           outstanding_units(w.r) - (w.r).attempt_stated + w.attempt_stated as outstanding
    from wanted w),
verdict as materialized (
    select w.*,
           case
               when w.key_id in (select void_keys($9)) then 'unauthenticated'
               when (w.r).attempt_token is distinct from w.token then 'stale_attempt'
               when not w.stated and (w.r).enforcement = 'worker' then 'units_missing'
               when ((w.r).state = 'settled' or (w.r).attempt_done) and (w.r).attempt_settled = w.units then 'repeated'
               when (w.r).state = 'settled' or (w.r).attempt_done then 'already_settled'
               when (w.r).state not in ('active', 'cancelling', 'fenced') then 'not_active'
               when not w.final and (w.r).enforcement = 'calls' then 'not_progressive'
               when w.more < 0 then 'usage_decreases'
               when not w.final and w.more = 0 then 'repeated'
               when w.final and (w.r).attempt_in_flight > 0 then 'calls_in_flight'
               else 'settled'
           end as outcome,
           case
               when w.outstanding = 0 and (w.final or (w.r).state = 'fenced') then 'settled'
               when w.final then 'fenced'
               else (w.r).state
           end as state
    from after w),
kept as materialized (
    select k.n, k.r
    from (select array_agg(row (v.n, v.r,
                                jsonb_build_object('state', v.state, 'settled', (v.r).settled + v.more,
                                                   'stated_outstanding',
                                                   (v.r).stated_outstanding - (v.r).attempt_stated + v.attempt_stated,
                                                   'attempt_settled', v.units, 'attempt_stated', v.attempt_stated,
                                                   'attempt_done', v.final,
                                                   'provider_request_id',
                                                   coalesce(v.provider_request_id, (v.r).provider_request_id)),
                                case when v.final then 'final_settlement' else 'progressive_settlement' end, v.actor,
                                jsonb_strip_nulls(jsonb_build_object('provider_request_id', v.provider_request_id)),
                                null)::reservation_change order by v.n) as asked
          from verdict v
          where v.outcome = 'settled'
          having count(*) > 0) a
    cross join lateral keep(a.asked) k),
late as (
    insert into late_usage (id, account, reservation_id, attempt_number, call_key, units, recorded,
                            provider_request_id, at, actor, refused_as)
    select v.late_id, (v.r).account, (v.r).id, attempt_of(v.r, v.token), '', v.units,
           settled_by_attempt(v.r, attempt_of(v.r, v.token)), v.provider_request_id, ledger_clock(), v.actor, v.outcome
    from verdict v
    where v.outcome in ('stale_attempt', 'already_settled') and v.stated and attempt_of(v.r, v.token) is not null
    on conflict on constraint late_usage_is_kept_once do nothing)
-- A repeat gives back too: who was told the first time may not have come so far.
select v.n as "n!", v.outcome as "outcome!", ledger_clock() as "at!",
       reservation_json(coalesce(k.r, v.r)) as "record!: Json<Record>",
       reservation_periods(v.r) as "budgets!: Json<Vec<ChargedPeriod>>",
       jsonb_build_object('carried', case when v.outcome = 'repeated' or k.n is not null then carried_from(v.r) end) as "seen!: Json<Seen>"
from verdict v
left join kept k on k.n = v.n
order by v.n
