-- End calls: settled with their actual units, or unknown, or not sent. A call may
-- settle above what it was admitted for; all of it is recorded, and what the
-- ceiling does not cover is an overrun. A fenced reservation ends by itself when
-- its last outstanding amount is known.
--
-- A worker sends the token of the attempt that admitted the call, stale or not
-- (usage is usage); who sends none speaks for finance, or only says that the
-- outcome is not known, which changes no charge.
--
-- Lock order: reservations by id, then budget periods by id (in keep()). Calls are
-- read and written under their reservation's lock, by functions that see them as
-- they are now.
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::numeric[], $7::text[], $8::text[],
                $9::text[], $10::uuid[], $11::uuid[], $12::uuid[])
         with ordinality
         as ask (account, id, key, token, becomes, units, provider_request_id, reason, actor, late_id, audit_id,
                 key_id, n)),
locked as materialized (
    select a.n, a.key, a.token, a.becomes, a.units, a.provider_request_id, a.reason, a.actor, a.late_id, a.audit_id,
           a.key_id, r
    from ask a
    join lock_reservations($1, $2) r on r.account = a.account and r.id = a.id),
known as materialized (
    select l.*, attempt_of(l.r, l.token) as said_by, call_now((l.r).account, (l.r).id, l.key) as c
    from locked l),
-- What the call was counted as, and what it is counted as now.
wanted as materialized (
    select k.*,
           (k.c).attempt_number = (k.r).attempt_number as own,
           case when (k.c).state = 'in_flight' then (k.c).units else 0 end as was_in_flight,
           case when (k.c).state = 'unknown' then (k.c).units else 0 end as was_unknown,
           case when k.becomes = 'unknown' then (k.c).units else 0 end as is_unknown,
           case when k.becomes = 'settled' then k.units else 0 end as actual
    from known k),
verdict as materialized (
    select w.*,
           case
               when w.key_id in (select void_keys($12)) then 'unauthenticated'
               -- The reservation has ended; usage that is reported now is late usage.
               when (w.c).key is null and w.said_by is not null and calls_are_archived((w.r).id)
                   then 'already_settled'
               when (w.c).key is null then 'no_call'
               when w.token is not null and w.said_by is distinct from (w.c).attempt_number then 'stale_attempt'
               when w.becomes = 'not_sent' and not w.own then 'stale_attempt'
               when (w.c).state = w.becomes and (w.becomes <> 'settled' or (w.c).actual = w.units) then 'repeated'
               when (w.c).state in ('settled', 'not_sent') then 'call_already_settled'
               when w.becomes = 'not_sent' and (w.c).state = 'unknown' then 'call_already_settled'
               when (w.r).state not in ('active', 'cancelling', 'fenced') then 'already_settled'
               else 'ended'
           end as outcome,
           outstanding_units(w.r) - w.was_in_flight - w.was_unknown + w.is_unknown as outstanding
    from wanted w),
kept as materialized (
    select k.n, k.r
    from (select array_agg(row (v.n, v.r,
                                jsonb_build_object(
                                    'state', case when (v.r).state = 'fenced' and v.outstanding = 0 then 'settled'
                                                  else (v.r).state end,
                                    'settled', (v.r).settled + v.actual,
                                    'in_flight', (v.r).in_flight - v.was_in_flight,
                                    'unknown_units', (v.r).unknown_units - v.was_unknown + v.is_unknown,
                                    -- What the attempt has settled for good stays what it said.
                                    'attempt_settled', (v.r).attempt_settled
                                        + case when v.own and not (v.r).attempt_done then v.actual else 0 end,
                                    'attempt_in_flight', (v.r).attempt_in_flight
                                        - case when v.own then v.was_in_flight else 0 end),
                                'call_' || v.becomes, v.actor,
                                jsonb_strip_nulls(jsonb_build_object(
                                    'call', v.key, 'units', trim_scale(v.units)::text,
                                    'provider_request_id', v.provider_request_id, 'reason', v.reason)),
                                v.reason)::reservation_change order by v.n) as asked
          from verdict v
          where v.outcome = 'ended'
          having count(*) > 0) a
    cross join lateral keep(a.asked) k),
ended as materialized (
    select k.n, k.r, end_call(v.c, v.becomes, v.units, v.provider_request_id, (k.r).updated_at) as c
    from kept k
    join verdict v on v.n = k.n),
late as (
    insert into late_usage (id, account, reservation_id, attempt_number, call_key, units, recorded,
                            provider_request_id, at, actor, refused_as)
    select v.late_id, (v.r).account, (v.r).id, v.said_by, v.key, v.units, coalesce((v.c).actual, 0),
           v.provider_request_id, ledger_clock(), v.actor, v.outcome
    from verdict v
    where v.outcome in ('stale_attempt', 'call_already_settled', 'already_settled')
      and v.units is not null and v.said_by is not null
    on conflict on constraint late_usage_is_kept_once do nothing),
audited as (
    insert into audit_entry (id, at, actor, action, subject, detail)
    select v.audit_id, ledger_clock(), v.actor, 'call_closed', (v.r).id::text,
           jsonb_build_object('account', (v.r).account, 'call', v.key, 'reason', v.reason,
                              'units', trim_scale(v.units)::text,
                              'before', jsonb_build_object('state', (v.c).state,
                                                           'units', trim_scale((v.c).units)::text))
    from verdict v
    where v.outcome = 'ended' and v.reason is not null)
-- A repeat gives back too: who was told the first time may not have come so far.
select v.n as "n!", v.outcome as "outcome!", ledger_clock() as "at!",
       reservation_json(coalesce(e.r, v.r)) as "record!: Json<Record>",
       reservation_periods(v.r) as "budgets!: Json<Vec<ChargedPeriod>>",
       jsonb_build_object('call', call_json(coalesce(e.c, v.c)),
                          'carried', case when v.outcome = 'repeated' or e.n is not null then carried_from(v.r) end) as "seen!: Json<Seen>"
from verdict v
left join ended e on e.n = v.n
order by v.n
