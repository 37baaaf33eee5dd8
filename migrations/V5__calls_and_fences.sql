-- Work that was cancelled, abandoned or taken over stays charged until it is
-- proven harmless: calls, what earlier attempts may have spent, and usage that
-- arrives when nothing can be charged any more.

-- Element n is the token of attempt n. They live in the locked row, so that who
-- has waited for its lock knows them all.
alter table reservation add column superseded_tokens text[] not null default '{}';
alter table reservation add constraint reservation_every_attempt_had_a_token
    check (cardinality(superseded_tokens) = coalesce(attempt_number, 1) - 1);
comment on column reservation.superseded_tokens is
    'The tokens of the attempts before the current one, by number: who sends one is refused as stale.';

alter table reservation add column superseded_settled numeric(28, 12)[] not null default '{}';
alter table reservation add constraint reservation_every_attempt_had_settled_something_or_zero
    check (cardinality(superseded_settled) = cardinality(superseded_tokens)
           and 'NaN' <> all (superseded_settled) and 0 <= all (superseded_settled));
comment on column reservation.superseded_settled is
    'What the attempts before the current one had reported when they were taken over, by number.';

alter table reservation add column liability_since timestamptz;
alter table reservation add constraint reservation_liability_is_dated
    check ((liability_since is not null) = (liability > 0));
comment on column reservation.liability_since is
    'Since when it has had something in liability without a break; null while it has nothing there.';

create table call (
    account             text not null,
    reservation_id      uuid not null,
    key                 text not null,
    id                  uuid not null,
    attempt_number      integer not null,
    state               text not null,
    units               numeric(28, 12) not null,
    actual              numeric(28, 12),
    provider_request_id text,
    admitted_at         timestamptz not null,
    ended_at            timestamptz,
    primary key (account, reservation_id, key),
    constraint call_state_is_known check (state in ('in_flight', 'settled', 'unknown', 'not_sent')),
    constraint call_amounts_are_amounts check (
        'NaN' not in (units, coalesce(actual, 0)) and least(units, coalesce(actual, 0)) >= 0),
    constraint call_has_an_actual_when_settled check ((state = 'settled') = (actual is not null)),
    constraint call_has_ended_unless_in_flight check ((state = 'in_flight') = (ended_at is null)),
    constraint call_attempt_counts_from_one check (attempt_number >= 1)
) with (fillfactor = 80);
comment on table call is
    'One paid provider request, admitted under a reservation before it was sent. Changed only under its reservation''s lock.';
comment on column call.account is 'The account of the reservation.';
comment on column call.reservation_id is 'The reservation.';
comment on column call.key is 'The client''s own key for the call, once for each reservation.';
comment on column call.id is 'Its id, made when it was asked for; ids rise with time.';
comment on column call.attempt_number is 'The attempt that admitted it: of the workers only that one may settle it.';
comment on column call.state is
    'in_flight (counted, not ended), settled, unknown (charged in full until it is settled or closed), not_sent.';
comment on column call.units is 'The most that it may cost, as admitted.';
comment on column call.actual is 'What it cost; null until it is settled.';
comment on column call.provider_request_id is 'The provider''s own name for it, if it was given.';
comment on column call.admitted_at is 'When it was admitted, by the database''s clock.';
comment on column call.ended_at is 'When it was settled or said to be unknown or not sent; null while it is in flight.';

create table late_usage (
    id                  uuid primary key,
    account             text not null,
    reservation_id      uuid not null,
    attempt_number      integer not null,
    call_key            text not null,
    units               numeric(28, 12) not null,
    recorded            numeric(28, 12) not null,
    provider_request_id text,
    at                  timestamptz not null,
    actor               text not null,
    refused_as          text not null,
    constraint late_usage_is_kept_once unique (account, reservation_id, attempt_number, call_key, units),
    constraint late_usage_amounts_are_amounts check ('NaN' not in (units, recorded) and least(units, recorded) >= 0)
);
comment on table late_usage is
    'Usage that was reported when it could not be charged any more: by a stale attempt, or after the settlement. The report changed no balance; finance adjusts. Append-only.';
comment on column late_usage.id is 'Its id; ids rise with time.';
comment on column late_usage.account is 'The account of the reservation.';
comment on column late_usage.reservation_id is 'The reservation.';
comment on column late_usage.attempt_number is 'The attempt that reported it.';
comment on column late_usage.call_key is 'The call that it is the usage of; empty for the attempt''s own total.';
comment on column late_usage.units is 'What was reported: of a call, or of an attempt in all.';
comment on column late_usage.recorded is
    'What had been settled of that call, or by that attempt, when it was reported: what is not in the books is at most the difference.';
comment on column late_usage.provider_request_id is 'The provider''s own name for the work, if it was given.';
comment on column late_usage.at is 'When, by the database''s clock.';
comment on column late_usage.actor is 'The API key that reported it.';
comment on column late_usage.refused_as is 'The reason with which the report was refused.';
create trigger late_usage_is_append_only before update or delete or truncate on late_usage
    for each statement execute function refuse_change();

comment on table audit_entry is
    'Who changed what: policy, keys, and what people decide of reservations (fences, forced takeovers, closings). Append-only.';

-- What follows is written in PL/pgSQL so that each statement in it sees what was
-- committed a moment ago, also in the middle of a statement that has waited for a
-- lock. Rows to be locked are named by arrays, never by a join or an IN (SELECT):
-- when a row had to be waited for, the recheck of such a join can lose it.

-- The first lock of every verb on reservations that exist.
create function lock_reservations(accounts text[], ids uuid[]) returns setof reservation language plpgsql as $$
begin
    return query
        select r.*
        from reservation r
        where r.account = any (accounts) and r.id = any (ids)
        order by r.id
        for no key update of r;
end $$;
comment on function lock_reservations(text[], uuid[]) is
    'The reservations, locked in the order of their ids, as they are now.';

-- The second lock: the periods that these reservations are charged to.
create function lock_periods(charged reservation[]) returns void language plpgsql as $$
declare
    locked bigint;
begin
    perform p.id
    from budget_period p
    where p.account = any (array(select r.account from unnest(charged) r) || ''::text)
      and p.id = any (array(select unnest(r.period_ids) from unnest(charged) r))
    order by p.id
    for no key update of p;
    get diagnostics locked = row_count;
    perform all_of(locked, (select count(distinct period) from unnest(charged) r cross join unnest(r.period_ids) period));
end $$;
comment on function lock_periods(reservation[]) is
    'Locks the budget periods that these reservations are charged to, in the order of their ids.';

-- Which attempt of the reservation a token stands for; null if none ever had it.
create function attempt_of(r reservation, token text) returns integer language sql immutable parallel safe
    return case when r.attempt_token = token then r.attempt_number else array_position(r.superseded_tokens, token) end;
comment on function attempt_of(reservation, text) is 'The number of the attempt that a token was issued to, if any.';

-- What the books have of an attempt's own usage.
create function settled_by_attempt(r reservation, number integer) returns numeric language plpgsql as $$
begin
    if number = r.attempt_number then
        return r.attempt_settled;
    elsif r.enforcement = 'worker' then
        return r.superseded_settled[number];
    end if;
    -- Its calls may have been settled since.
    return (select coalesce(sum(c.actual), 0)
            from call c
            where c.account = r.account and c.reservation_id = r.id and c.attempt_number = number);
end $$;
comment on function settled_by_attempt(reservation, integer) is 'What has been settled of this attempt''s own usage.';

-- What may have been spent and is not known yet.
create function outstanding_units(r reservation) returns numeric language sql immutable parallel safe
    return r.in_flight + r.unknown_units + r.stated_outstanding;
comment on function outstanding_units(reservation) is
    'in flight + unknown + stated: what may have been spent and is not known yet.';

-- The call with this key as it is now. The caller holds the reservation's lock,
-- which is the only lock that calls have.
create function call_now(of_account text, of_reservation uuid, of_key text) returns call language plpgsql as $$
declare
    known call;
begin
    select c.*
    into known
    from call c
    where c.account = of_account and c.reservation_id = of_reservation and c.key = of_key;
    return known;
end $$;
comment on function call_now(text, uuid, text) is 'The call with this key as it is now; null if there is none.';

-- Ends a call, as decided under its reservation's lock.
create function end_call(c call, becomes text, costs numeric, provider_name text, at timestamptz)
    returns call language plpgsql as $$
declare
    ended call;
begin
    update call t
    set state = becomes,
        actual = costs,
        provider_request_id = coalesce(provider_name, t.provider_request_id),
        ended_at = at
    where t.account = c.account and t.reservation_id = c.reservation_id and t.key = c.key
    returning t.* into ended;
    return ended;
end $$;
comment on function end_call(call, text, numeric, text, timestamptz) is
    'The call, ended as it was decided under its reservation''s lock.';

-- Moves the end of a lease. It is no change of the reservation: no version, no
-- event, no balance follows from it.
create function set_lease(r reservation, expires timestamptz) returns reservation language plpgsql as $$
declare
    leased reservation;
begin
    update reservation t
    set lease_expires_at = expires
    where t.account = r.account and t.id = r.id
    returning t.* into leased;
    return leased;
end $$;
comment on function set_lease(reservation, timestamptz) is 'The reservation with another end of its lease.';

-- What an open reservation holds that needs somebody, by reason. The parts but
-- the first add up to its liability.
create type parts as (
    overdue          numeric,
    cancelled        numeric,
    unknown_calls    numeric,
    earlier_attempts numeric,
    fenced           numeric
);
comment on type parts is 'What an open reservation holds that needs somebody, by reason.';

create function open_parts(r reservation, at timestamptz) returns parts language plpgsql stable parallel safe as $$
declare
    earlier numeric := case when r.state in ('active', 'cancelling') then r.stated_outstanding else 0 end;
begin
    return row (case when r.state = 'active' and r.lease_expires_at <= at then r.reserved end,
                case when r.state = 'cancelling' then r.liability - r.unknown_units - earlier end,
                nullif(r.unknown_units, 0),
                nullif(earlier, 0),
                case when r.state = 'fenced' then r.liability - r.unknown_units end)::parts;
end $$;
comment on function open_parts(reservation, timestamptz) is
    'What an open reservation holds that needs somebody at this time, by reason; null where the reason does not apply.';

create function reasons(p parts) returns text[] language sql immutable parallel safe
    return array_remove(array[case when p.overdue is not null then 'overdue' end,
                              case when p.cancelled is not null then 'cancelled' end,
                              case when p.unknown_calls is not null then 'unknown_calls' end,
                              case when p.earlier_attempts is not null then 'earlier_attempts' end,
                              case when p.fenced is not null then 'fenced' end], null);
comment on function reasons(parts) is 'The names of the parts that apply.';

-- One call as the program reads it: amounts as exact text.
create function call_json(c call) returns jsonb language plpgsql stable parallel safe as $$
begin
    return case when c.key is not null then jsonb_build_object(
        'call', c.key, 'id', c.id, 'attempt', c.attempt_number, 'state', c.state,
        'units', trim_scale(c.units)::text, 'actual', trim_scale(c.actual)::text,
        'provider_request_id', c.provider_request_id,
        'admitted_at', c.admitted_at, 'ended_at', c.ended_at) end;
end $$;
comment on function call_json(call) is 'A call as the program reads it, amounts as exact text; null if there is none.';

-- Budgets whose newest period still carries what an ended one of this
-- reservation's held.
create function carried_from(r reservation) returns jsonb language plpgsql as $$
begin
    return (select coalesce(jsonb_agg(jsonb_build_object(
                       'account', p.account, 'budget', p.budget, 'member', p.member)), '[]')
            from budget_period p
            where p.id = any (r.period_ids) and p.account in (r.account, '') and p.ends_at <= ledger_clock()
              and exists (select
                          from budget_period q
                          where q.account = p.account and q.budget = p.budget and q.member = p.member
                            and q.starts_at > p.starts_at and q.carried > 0));
end $$;
comment on function carried_from(reservation) is
    'The budgets to which a release by this reservation is to be given back: those whose newest period carries something.';

-- Keeps changes of reservations: writes the rows, with what they hold by the
-- formula, their events, and the postings that follow in each of their periods.
-- The caller holds the reservations' locks and has decided from the locked rows;
-- the periods whose buckets change are locked here, in the order of their ids, if
-- they are not yet. What changes no bucket takes no lock on a period: a call
-- within the ceiling leaves the busiest row alone.
--
-- These are statements of their own: they see the rows as the locks show them,
-- whatever the snapshot of the statement that calls this.
create or replace function keep(asked reservation_change[]) returns table (n bigint, r reservation)
    language plpgsql as $$
declare
    kept reservation_change[]; -- with the row as it is now in the place of the row before
begin
    with change as (
        select c.n, c.before, jsonb_populate_record(c.before, c.changes) as wanted, c.event, c.actor, c.detail
        from unnest(asked) c),
    formula as (
        select c.*, h.held,
               liability_units((c.wanted).state, h.held, (c.wanted).unknown_units, (c.wanted).stated_outstanding)
                   as liability,
               greatest((c.before).updated_at, ledger_clock()) as at
        from change c
        cross join lateral (
            select held_units((c.wanted).state, (c.wanted).ceiling, (c.wanted).settled,
                              outstanding_units(c.wanted)) as held) h),
    changed as (
        update reservation t
        set state = (f.wanted).state,
            ceiling = (f.wanted).ceiling,
            settled = (f.wanted).settled,
            in_flight = (f.wanted).in_flight,
            unknown_units = (f.wanted).unknown_units,
            stated_outstanding = (f.wanted).stated_outstanding,
            reserved = f.held - f.liability,
            liability = f.liability,
            liability_since = case when f.liability > 0 then coalesce((f.before).liability_since, f.at) end,
            version = (f.before).version + 1,
            attempt_number = (f.wanted).attempt_number,
            attempt_holder = (f.wanted).attempt_holder,
            attempt_token = (f.wanted).attempt_token,
            superseded_tokens = (f.wanted).superseded_tokens,
            superseded_settled = (f.wanted).superseded_settled,
            attempt_settled = (f.wanted).attempt_settled,
            attempt_in_flight = (f.wanted).attempt_in_flight,
            attempt_stated = (f.wanted).attempt_stated,
            attempt_done = (f.wanted).attempt_done,
            lease_expires_at = (f.wanted).lease_expires_at,
            provider_request_id = (f.wanted).provider_request_id,
            updated_at = f.at,
            closed_at = case when (f.wanted).state in ('settled', 'expired', 'cancelled') then f.at end
        from formula f
        where t.account = (f.before).account and t.id = (f.before).id and t.version = (f.before).version
        returning f.n, t as after, f.event, f.actor, f.detail),
    told as (
        insert into reservation_event (account, reservation_id, version, event, at, actor, state, ceiling, settled,
                                       reserved, liability, attempt_number, detail)
        select (c.after).account, (c.after).id, (c.after).version, c.event, (c.after).updated_at, c.actor,
               (c.after).state, (c.after).ceiling, (c.after).settled, (c.after).reserved, (c.after).liability,
               (c.after).attempt_number, coalesce(c.detail, '{}')
        from changed c)
    select array_agg(row (c.n, c.after, null, c.event, c.actor, null, null)::reservation_change)
    into kept
    from changed c;
    perform all_of(coalesce(cardinality(kept), 0), coalesce(cardinality(asked), 0));

    perform keep_books(array_agg(c), array_agg(k))
    from unnest(kept) k
    join unnest(asked) c on c.n = k.n
    where ((c.before).settled, (c.before).reserved, (c.before).liability)
              is distinct from ((k.before).settled, (k.before).reserved, (k.before).liability)
    having count(*) > 0;
    return query select k.n, k.before from unnest(kept) k;
end $$;

-- The part of keep() that is about periods: each change with the row before it
-- (asked) and after it (kept).
create function keep_books(asked reservation_change[], kept reservation_change[]) returns bigint language plpgsql as $$
begin
    perform lock_periods(array(select c.before from unnest(asked) c));
    return (
        select post(array_agg(row (k.n, p.account, p.id, k.event, k.actor,
                                   (c.before).settled + (c.before).reserved + (c.before).liability
                                       - (k.before).settled - (k.before).reserved - (k.before).liability,
                                   (k.before).reserved - (c.before).reserved,
                                   (k.before).liability - (c.before).liability,
                                   (k.before).settled - (c.before).settled,
                                   0, 0, (k.before).account, (k.before).id, (k.before).version, c.reason)::posting
                              order by k.n, p.id),
                    (select coalesce(sum(cardinality((c.before).period_ids)), 0)::bigint from unnest(asked) c))
        from unnest(kept) k
        join unnest(asked) c on c.n = k.n
        join budget_period p on p.id = any ((k.before).period_ids) and p.account in ((k.before).account, ''));
end $$;
comment on function keep_books(reservation_change[], reservation_change[]) is
    'Locks the periods of changed reservations and posts what the changes do to them.';

-- As in V4: of a call only what a verb may change, nothing is ever deleted.
revoke all on call, late_usage from public;
grant select, insert on call, late_usage to spend_ledger_service;
grant update (state, actual, provider_request_id, ended_at) on call to spend_ledger_service;
grant update (superseded_tokens, superseded_settled, liability_since) on reservation to spend_ledger_service;
grant select on call, late_usage to spend_ledger_finance;
grant select (superseded_settled, liability_since) on reservation to spend_ledger_finance;
