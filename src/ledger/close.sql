-- Close: finance settles reservations at amounts of its own finding, whatever is
-- outstanding, each with a reason that shows in the journal, the history and the
-- audit log. Never below what is settled already: lowering is an adjustment.
--
-- Lock order: reservations by id, then budget periods by id (in keep()).
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::numeric[], $4::text[], $5::text[], $6::uuid[])
         with ordinality as ask (account, id, units, reason, actor, audit_id, n)),
locked as materialized (
    select a.n, a.units, a.reason, a.actor, a.audit_id, r
    from ask a
    join lock_reservations($1, $2) r on r.account = a.account and r.id = a.id),
verdict as materialized (
    select l.*,
           case
               when (l.r).state = 'settled' and (l.r).settled = l.units then 'repeated'
               when (l.r).state = 'settled' then 'already_settled'
               when (l.r).state not in ('active', 'cancelling', 'fenced') then 'not_active'
               when l.units < (l.r).settled then 'usage_decreases'
               else 'closed'
           end as outcome
    from locked l),
kept as materialized (
    select k.n, k.r
    from (select array_agg(row (v.n, v.r,
                                jsonb_build_object('state', 'settled', 'settled', v.units, 'in_flight', 0,
                                                   'unknown_units', 0, 'stated_outstanding', 0,
                                                   'attempt_in_flight', 0, 'attempt_stated', 0),
                                'finance_settlement', v.actor, jsonb_build_object('reason', v.reason),
                                v.reason)::reservation_change order by v.n) as asked
          from verdict v
          where v.outcome = 'closed'
          having count(*) > 0) a
    cross join lateral keep(a.asked) k),
audited as (
    insert into audit_entry (id, at, actor, action, subject, detail)
    select v.audit_id, ledger_clock(), v.actor, 'reservation_closed', (v.r).id::text,
           jsonb_build_object('account', (v.r).account, 'reason', v.reason, 'units', trim_scale(v.units)::text,
                              'before', jsonb_build_object(
                                  'state', (v.r).state, 'settled', trim_scale((v.r).settled)::text,
                                  'outstanding', trim_scale(outstanding_units(v.r))::text,
                                  'charged', trim_scale((v.r).settled + (v.r).reserved + (v.r).liability)::text))
    from verdict v
    where v.outcome = 'closed')
-- A repeat gives back too: who was told the first time may not have come so far.
select v.n as "n!", v.outcome as "outcome!", ledger_clock() as "at!",
       reservation_json(coalesce(k.r, v.r)) as "record!: Json<Record>",
       reservation_periods(v.r) as "budgets!: Json<Vec<ChargedPeriod>>",
       jsonb_build_object('carried', case when v.outcome = 'repeated' or k.n is not null then carried_from(v.r) end) as "seen!: Json<Seen>"
from verdict v
left join kept k on k.n = v.n
order by v.n
