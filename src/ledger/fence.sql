-- Fence: the attempt cannot spend more, so what is neither settled nor outstanding
-- is released. Where the ledger is the enforcement point (calls), it knows what is
-- outstanding. Where it is not (worker), only evidence can say that the attempt
-- has stopped, and whoever gives it states what may be outstanding: nothing stated
-- means everything that this attempt had. A later fence of the same attempt can
-- only lower that.
--
-- Lock order: reservations by id, then budget periods by id (in keep()). $6 is for
-- fencing in bulk: only what is active and has been overdue for that long, by the
-- clock read under the lock, so that a holder who has come back is left alone.
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::integer[], $4::jsonb[], $5::numeric[], $6::interval[], $7::text[], $8::uuid[])
         with ordinality as ask (account, id, number, evidence, outstanding, overdue_for, actor, audit_id, n)),
locked as materialized (
    select a.n, a.number, a.evidence, a.outstanding, a.overdue_for, a.actor, a.audit_id, r
    from ask a
    join lock_reservations($1, $2) r on r.account = a.account and r.id = a.id),
-- What this attempt may have spent beyond what is settled.
wanted as materialized (
    select l.*,
           case
               when (l.r).enforcement = 'calls' then (l.r).attempt_stated
               else coalesce(l.outstanding,
                             greatest((l.r).ceiling - (l.r).settled
                                          - ((l.r).stated_outstanding - (l.r).attempt_stated), 0))
           end as attempt_stated
    from locked l),
after as materialized (
    select w.*,
           outstanding_units(w.r) - (w.r).attempt_stated + w.attempt_stated as outstanding_after
    from wanted w),
verdict as materialized (
    select w.*,
           case
               when w.overdue_for is not null
                    and ((w.r).state <> 'active' or (w.r).lease_expires_at > ledger_clock() - w.overdue_for)
                   then 'not_overdue'
               when (w.r).attempt_number is distinct from w.number then 'stale_attempt'
               when (w.r).state not in ('active', 'cancelling', 'fenced') then 'unchanged'
               when (w.r).enforcement = 'worker' and w.evidence is null then 'evidence_required'
               when (w.r).enforcement = 'calls' and w.outstanding is not null then 'outstanding_is_computed'
               when (w.r).state = 'fenced' and ((w.r).enforcement = 'calls' or w.outstanding is null
                                                or w.outstanding >= (w.r).attempt_stated) then 'unchanged'
               else 'fenced'
           end as outcome
    from after w),
kept as materialized (
    select k.n, k.r
    from (select array_agg(row (v.n, v.r,
                                jsonb_build_object(
                                    'state', case when v.outstanding_after = 0 then 'settled' else 'fenced' end,
                                    'ceiling', least((v.r).ceiling, (v.r).settled + v.outstanding_after),
                                    'stated_outstanding',
                                    (v.r).stated_outstanding - (v.r).attempt_stated + v.attempt_stated,
                                    'attempt_stated', v.attempt_stated),
                                'fence', v.actor,
                                jsonb_strip_nulls(jsonb_build_object(
                                    'evidence', v.evidence, 'outstanding', trim_scale(v.outstanding)::text,
                                    'overdue_for', v.overdue_for::text)),
                                null)::reservation_change order by v.n) as asked
          from verdict v
          where v.outcome = 'fenced'
          having count(*) > 0) a
    cross join lateral keep(a.asked) k),
audited as (
    insert into audit_entry (id, at, actor, action, subject, detail)
    select v.audit_id, ledger_clock(), v.actor, 'reservation_fenced', (v.r).id::text,
           jsonb_strip_nulls(jsonb_build_object('account', (v.r).account, 'attempt', v.number, 'evidence', v.evidence,
                                                'still_outstanding', trim_scale(v.outstanding_after)::text,
                                                'overdue_for', v.overdue_for::text))
    from verdict v
    where v.outcome = 'fenced')
-- A repeat gives back too: who was told the first time may not have come so far.
select v.n as "n!", v.outcome as "outcome!", ledger_clock() as "at!",
       reservation_json(coalesce(k.r, v.r)) as "record!: Json<Record>",
       reservation_periods(v.r) as "budgets!: Json<Vec<ChargedPeriod>>",
       jsonb_build_object(
           'carried', case when v.outcome = 'unchanged' or k.n is not null then carried_from(v.r) end,
           'released', trim_scale(greatest(coalesce((v.r).settled + (v.r).reserved + (v.r).liability
                                                        - (k.r).settled - (k.r).reserved - (k.r).liability, 0),
                                           0))::text) as "seen!: Json<Seen>"
from verdict v
left join kept k on k.n = v.n
order by v.n
