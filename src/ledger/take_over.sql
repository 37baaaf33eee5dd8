-- Take over: make attempt n + 1 current, with no fresh allowance. Everything that
-- attempt n sends afterwards is stale. Where the ledger cannot stop attempt n
-- (worker), evidence is needed, and what that attempt may have spent beyond what
-- it reported becomes liability until finance settles it; nothing stated means
-- everything. What of that the room does not cover is an overrun.
--
-- Lock order: reservations by id, then budget periods by id (in keep()). Whether
-- the lease has run out is decided by the clock read under the lock.
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::integer[], $4::text[], $5::text[], $6::integer[], $7::jsonb[], $8::numeric[],
                $9::boolean[], $10::text[], $11::uuid[])
         with ordinality
         as ask (account, id, previous, holder, token, lease_seconds, evidence, outstanding, force, actor, audit_id, n)),
locked as materialized (
    select a.n, a.previous, a.holder, a.token, a.lease_seconds, a.evidence, a.outstanding, a.force, a.actor, a.audit_id, r
    from ask a
    join lock_reservations($1, $2) r on r.account = a.account and r.id = a.id),
-- Read after the last lock was granted.
decided_at as materialized (
    select count(*) as locked, ledger_clock() as at from locked),
verdict as materialized (
    select l.*, d.at,
           case
               when (l.r).attempt_number - 1 = l.previous and (l.r).attempt_holder = l.holder then 'repeated'
               when (l.r).attempt_number is distinct from l.previous then 'stale_attempt'
               when (l.r).state <> 'active' then 'not_active'
               when not l.force and (l.r).lease_expires_at > d.at then 'lease_current'
               when (l.r).enforcement = 'worker' and l.evidence is null then 'evidence_required'
               when (l.r).enforcement = 'calls' and l.outstanding is not null then 'outstanding_is_computed'
               else 'taken_over'
           end as outcome,
           case
               when (l.r).enforcement = 'calls' then 0
               when l.outstanding is null then greatest((l.r).ceiling - (l.r).settled - outstanding_units(l.r), 0)
               else greatest(l.outstanding - (l.r).attempt_settled, 0)
           end as may_have_spent
    from locked l
    cross join decided_at d),
kept as materialized (
    select k.n, k.r
    from (select array_agg(row (v.n, v.r,
                                jsonb_build_object(
                                    'stated_outstanding', (v.r).stated_outstanding + v.may_have_spent,
                                    'attempt_number', (v.r).attempt_number + 1, 'attempt_holder', v.holder,
                                    'attempt_token', v.token,
                                    'superseded_tokens', array_append((v.r).superseded_tokens, (v.r).attempt_token),
                                    'superseded_settled',
                                    array_append((v.r).superseded_settled, (v.r).attempt_settled),
                                    'attempt_settled', 0, 'attempt_in_flight', 0, 'attempt_stated', 0,
                                    'attempt_done', false,
                                    'lease_expires_at', v.at + make_interval(secs => v.lease_seconds)),
                                'takeover', v.actor,
                                jsonb_strip_nulls(jsonb_build_object(
                                    'previous', v.previous, 'previous_holder', (v.r).attempt_holder,
                                    'holder', v.holder, 'evidence', v.evidence,
                                    'outstanding', trim_scale(v.outstanding)::text,
                                    'may_have_spent', trim_scale(v.may_have_spent)::text,
                                    'forced', case when v.force then true end)),
                                null)::reservation_change order by v.n) as asked
          from verdict v
          where v.outcome = 'taken_over'
          having count(*) > 0) a
    cross join lateral keep(a.asked) k),
audited as (
    insert into audit_entry (id, at, actor, action, subject, detail)
    select v.audit_id, ledger_clock(), v.actor, 'takeover_forced', (v.r).id::text,
           jsonb_strip_nulls(jsonb_build_object('account', (v.r).account, 'previous', v.previous,
                                                'previous_holder', (v.r).attempt_holder, 'holder', v.holder,
                                                'evidence', v.evidence))
    from verdict v
    where v.outcome = 'taken_over' and v.force)
select v.n as "n!", v.outcome as "outcome!", v.at as "at!",
       reservation_json(coalesce(k.r, v.r)) as "record!: Json<Record>",
       reservation_periods(v.r) as "budgets!: Json<Vec<ChargedPeriod>>",
       '{}'::jsonb as "seen!: Json<Seen>"
from verdict v
left join kept k on k.n = v.n
order by v.n
