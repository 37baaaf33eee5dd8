-- Settle: replace what is reserved by actual usage, each reservation exactly
-- once. Usage is the cumulative actual of the current attempt. A final
-- settlement releases what is not needed; a progressive one keeps the room.
--
-- Lock order: reservations by id, then budget periods by id. Every new value is
-- computed from the locked rows; of two settlements racing the second finds the
-- first one's result. Usage is never refused for want of room: what the ceiling
-- does not cover is an overrun, and available may become negative by it.
with ask as materialized (
    select *
    from unnest($1::text[], $2::uuid[], $3::text[], $4::numeric[], $5::boolean[], $6::text[], $7::text[])
         with ordinality as ask (account, id, token, units, final, provider_request_id, actor, n)),
-- What is locked is named by arrays, never by a join or an IN (SELECT): when a
-- row had to be waited for, the recheck of such a join can lose it.
locked_reservation as materialized (
    select r
    from reservation r
    where r.account = any ($1) and r.id = any ($2)
    order by r.id
    for no key update of r),
locked as materialized (
    select a.n, a.token, a.units, a.final, a.provider_request_id, a.actor, l.r
    from ask a
    join locked_reservation l on (l.r).account = a.account and (l.r).id = a.id),
period as materialized (
    select p.*
    from budget_period p
    where p.account = any (array(select (l.r).account from locked l) || ''::text)
      and p.id = any (array(select unnest((l.r).period_ids) from locked l))
    order by p.id
    for no key update of p),
-- Read after the last lock was granted: the count comes first, and must be all.
decided_at as materialized (
    select all_of(count(*), (select count(distinct id) from locked l cross join unnest((l.r).period_ids) id)) as periods,
           ledger_clock() as at
    from period),
-- The reservation as it would be.
wanted as materialized (
    select l.*,
           case when l.final then 'settled' else (l.r).state end as state,
           (l.r).settled - (l.r).attempt_settled + l.units as settled
    from locked l),
verdict as materialized (
    select w.*,
           case
               when (w.r).attempt_token is distinct from w.token then 'stale_attempt'
               when (w.r).state = 'settled' and (w.r).attempt_settled = w.units then 'repeated'
               when (w.r).state = 'settled' then 'already_settled'
               when (w.r).state <> 'active' then 'not_active'
               when not w.final and (w.r).enforcement = 'calls' then 'not_progressive'
               when w.units < (w.r).attempt_settled then 'usage_decreases'
               when not w.final and w.units = (w.r).attempt_settled then 'repeated'
               when w.settled > 9999999999999999.999999999999
                   or exists (select
                              from period p
                              where p.id = any ((w.r).period_ids)
                                and (p.settled - (w.r).settled + w.settled > 9999999999999999.999999999999
                                     or p.available + (w.r).reserved + (w.r).settled - w.settled
                                         < -9999999999999999.999999999999)) then 'out_of_range'
               else 'settled'
           end as outcome
    from wanted w),
kept as materialized (
    select k.n, k.r
    from (select array_agg(row (v.n, v.r,
                                jsonb_build_object('state', v.state, 'settled', v.settled, 'attempt_settled', v.units,
                                                   'attempt_done', v.final,
                                                   'provider_request_id',
                                                   coalesce(v.provider_request_id, (v.r).provider_request_id)),
                                case when v.final then 'final_settlement' else 'progressive_settlement' end, v.actor,
                                jsonb_strip_nulls(jsonb_build_object('provider_request_id', v.provider_request_id)),
                                null)::reservation_change order by v.n) as asked
          from verdict v
          where v.outcome = 'settled') a
    cross join lateral keep(a.asked) k)
select v.n as "n!", v.outcome as "outcome!", d.at as "at!",
       reservation_json(coalesce(k.r, v.r)) as "record!: Json<Record>",
       reservation_periods(v.r) as "budgets!: Json<Vec<ChargedPeriod>>",
          -- Budgets whose newest period still carries what an ended one held.
       (select coalesce(jsonb_agg(jsonb_build_object(
                   'account', p.account, 'budget', p.budget, 'member', p.member)), '[]')
        from period p
        where p.id = any ((v.r).period_ids) and v.outcome = 'settled' and p.ends_at <= d.at
          and exists (select
                      from budget_period q
                      where q.account = p.account and q.budget = p.budget and q.member = p.member
                        and q.starts_at > p.starts_at and q.carried > 0)) as "carried!: Json<Vec<BudgetOf>>"
from verdict v
cross join decided_at d
left join kept k on k.n = v.n
order by v.n
