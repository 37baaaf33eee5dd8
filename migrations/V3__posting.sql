-- How the journal is written: one way for every verb.

-- The transfers that explain a change of the four buckets of one period. What
-- the four changes add up to comes from, or goes to, granted. Sources are used
-- up in the order granted, reserved, liability, available, settled; targets are
-- filled in the order settled, liability, reserved, available, granted: so
-- actual usage is taken from what was reserved for it before anything else, and
-- only what that does not cover is an overrun, taken from available.
create function transfers(d_available numeric, d_reserved numeric, d_liability numeric, d_settled numeric)
    returns table (seq integer, source text, target text, amount numeric)
    language sql immutable parallel safe as $$
    with flow (bucket, change, as_source, as_target) as (
        values ('granted', -(d_available + d_reserved + d_liability + d_settled), 1, 5),
               ('reserved', d_reserved, 2, 3),
               ('liability', d_liability, 3, 2),
               ('available', d_available, 4, 4),
               ('settled', d_settled, 5, 1)),
    outflow as (
        select bucket, sum(-change) over (order by as_source) as upto, -change as size
        from flow where change < 0),
    inflow as (
        select bucket, sum(change) over (order by as_target) as upto, change as size
        from flow where change > 0)
    select (row_number() over (order by least(o.upto, i.upto)))::integer,
           o.bucket,
           i.bucket,
           least(o.upto, i.upto) - greatest(o.upto - o.size, i.upto - i.size)
    from outflow o
    join inflow i on o.upto - o.size < i.upto and i.upto - i.size < o.upto
$$;
comment on function transfers(numeric, numeric, numeric, numeric) is
    'The journal entries that explain a change of a period''s four buckets; the balance comes from or goes to granted.';

-- Which of the asked items have room, decided in the order in which they are
-- given: an item is admitted if every one of its charges still has room after
-- those admitted before it, and then takes its amount from all of them; else it
-- takes nothing. One array element for each charge; the charges of one item
-- stand together. Only arithmetic: the caller holds the locks on the periods
-- whose room this is.
create function admit(item bigint[], period uuid[], amount numeric[], room numeric[])
    returns bigint[] language plpgsql immutable as $$
declare
    admitted bigint[] := '{}';
    taken jsonb := '{}';
    first_charge integer := 1;
    last_charge integer;
    fits boolean;
    before numeric;
begin
    while first_charge <= coalesce(cardinality(item), 0) loop
        last_charge := first_charge;
        while last_charge < cardinality(item) and item[last_charge + 1] = item[first_charge] loop
            last_charge := last_charge + 1;
        end loop;
        fits := true;
        for i in first_charge..last_charge loop
            before := coalesce((taken ->> period[i]::text)::numeric, 0);
            fits := fits and (amount[i] = 0 or before + amount[i] <= room[i]);
        end loop;
        if fits then
            admitted := admitted || item[first_charge];
            for i in first_charge..last_charge loop
                before := coalesce((taken ->> period[i]::text)::numeric, 0);
                taken := taken || jsonb_build_object(period[i]::text, before + amount[i]);
            end loop;
        end if;
        first_charge := last_charge + 1;
    end loop;
    return admitted;
end $$;
comment on function admit(bigint[], uuid[], numeric[], numeric[]) is
    'The items whose every charge has room, decided in the order given.';

-- Refuses to go on with fewer rows than a decision is about. A statement that
-- waits for row locks must get every row that it asked for; if it does not, for
-- whatever reason, it is rolled back and sent again.
create function all_of(got bigint, wanted bigint) returns bigint language plpgsql immutable as $$
begin
    if got is distinct from wanted then
        raise exception 'got % of % rows', got, wanted using errcode = 'serialization_failure';
    end if;
    return got;
end $$;
comment on function all_of(bigint, bigint) is 'The first number, if it is the second; else the statement is rolled back.';

-- Not inlined, and volatile: it sees what was committed a moment ago, also in the
-- middle of a statement that has waited for a lock.
create function newest_period_ordinal(of_account text, of_budget text, of_member text)
    returns bigint language plpgsql volatile as $$
begin
    return (select p.ordinal
            from budget_period p
            where p.account = of_account and p.budget = of_budget and p.member = of_member
              and p.starts_at <= ledger_clock()
            order by p.starts_at desc
            limit 1);
end $$;
comment on function newest_period_ordinal(text, text, text) is
    'The ordinal of the newest period of a budget that has begun, at this instant.';

-- What a budget has room for: what is available, or, if it only observes, down to
-- what its columns can hold.
create function room_of(enforcing boolean, available numeric, reserved numeric)
    returns numeric language sql immutable parallel safe
    return case
        when enforcing then available
        else least(available + 9999999999999999.999999999999, 9999999999999999.999999999999 - reserved)
    end;
comment on function room_of(boolean, numeric, numeric) is
    'What a budget has room for: what is available, or without a limit if it only observes.';

-- One change of one budget period, to be posted.
create type posting as (
    n                   bigint,
    account             text,
    period_id           uuid,
    event               text,
    actor               text,
    d_available         numeric,
    d_reserved          numeric,
    d_liability         numeric,
    d_settled           numeric,
    d_limit             numeric,
    d_carried           numeric,
    reservation_account text,
    reservation_id      uuid,
    reservation_version bigint,
    reason              text
);
comment on type posting is
    'One change of one budget period''s buckets; n is its place in the statement''s order.';

-- Writes the journal entries of the postings and the balances that follow from
-- them. `wanted` is how many postings there must be. The caller holds the row locks of all the periods (in the order of their
-- ids) and has decided from the locked rows; nothing is decided here. Entry
-- times never run backwards against entry numbers, whatever the clock does.
create function post(postings posting[], wanted bigint) returns bigint language plpgsql as $$
declare
    written bigint;
begin
    perform all_of(coalesce(cardinality(postings), 0), wanted);
    with change as (
        select * from unnest(postings)),
    -- Read once: a plain subquery would be read again for every row, and rows
    -- are not made in the order of their numbers.
    instant as materialized (
        select ledger_clock() as at),
    entry as (
        select c.*, t.source, t.target, t.amount,
               p.entry_no + row_number() over each_entry as entry_no,
               p.available + sum(case 'available' when t.target then t.amount when t.source then -t.amount else 0 end)
                   over each_entry as available,
               p.reserved + sum(case 'reserved' when t.target then t.amount when t.source then -t.amount else 0 end)
                   over each_entry as reserved,
               p.liability + sum(case 'liability' when t.target then t.amount when t.source then -t.amount else 0 end)
                   over each_entry as liability,
               p.settled + sum(case 'settled' when t.target then t.amount when t.source then -t.amount else 0 end)
                   over each_entry as settled,
               greatest(p.last_entry_at, instant.at) as at
        from change c
        join budget_period p on p.account = c.account and p.id = c.period_id
        cross join instant
        cross join lateral transfers(c.d_available, c.d_reserved, c.d_liability, c.d_settled) t
        window each_entry as (partition by c.account, c.period_id order by c.n, t.seq
                              rows between unbounded preceding and current row)),
    journaled as (
        insert into journal_entry (account, period_id, entry_no, at, event, actor, source, target, amount,
                                   available, reserved, liability, settled,
                                   reservation_account, reservation_id, reservation_version, reason)
        select account, period_id, entry_no, at, event, actor, source, target, amount,
               available, reserved, liability, settled,
               reservation_account, reservation_id, reservation_version, reason
        from entry),
    last as (
        select account, period_id, max(entry_no) as entry_no, max(at) as at from entry group by 1, 2),
    total as (
        select account, period_id,
               sum(d_available) as available, sum(d_reserved) as reserved,
               sum(d_liability) as liability, sum(d_settled) as settled,
               sum(d_limit) as limit_units, sum(d_carried) as carried
        from change group by 1, 2)
    update budget_period p
    set available = p.available + t.available,
        reserved = p.reserved + t.reserved,
        liability = p.liability + t.liability,
        settled = p.settled + t.settled,
        limit_units = p.limit_units + t.limit_units,
        carried = p.carried + t.carried,
        granted = p.granted + t.limit_units - t.carried,
        entry_no = coalesce(l.entry_no, p.entry_no),
        last_entry_at = coalesce(l.at, p.last_entry_at)
    from total t
    left join last l on l.account = t.account and l.period_id = t.period_id
    where p.account = t.account and p.id = t.period_id;
    get diagnostics written = row_count;
    return all_of(written, (select count(distinct (account, period_id)) from unnest(postings)));
end $$;
comment on function post(posting[], bigint) is
    'Writes journal entries and balances for changes already decided under the periods'' locks.';

-- One change of one reservation, decided under its lock.
create type reservation_change as (
    n       bigint,
    before  reservation,
    changes jsonb,
    event   text,
    actor   text,
    detail  jsonb,
    reason  text
);
comment on type reservation_change is
    'One change of one reservation: the row as it was locked, the columns that change, and what is said of it.';

-- Keeps changes of reservations: writes the rows, with what they hold by the
-- formula, their events, and the postings that follow in each of their periods.
-- The caller holds the reservations' locks and has decided from the locked rows;
-- the periods are locked here, in the order of their ids, if they are not yet.
--
-- These are statements of their own: they see the rows as the locks show them,
-- whatever the snapshot of the statement that calls this.
create function keep(asked reservation_change[]) returns table (n bigint, r reservation) language plpgsql as $$
declare
    kept reservation_change[]; -- with the row as it is now in the place of the row before
begin
    perform p.id
    from budget_period p
    where p.account = any (array(select (c.before).account from unnest(asked) c) || ''::text)
      and p.id = any (array(select unnest((c.before).period_ids) from unnest(asked) c))
    order by p.id
    for no key update of p;

    with change as (
        select c.n, c.before, jsonb_populate_record(c.before, c.changes) as wanted, c.event, c.actor, c.detail, c.reason
        from unnest(asked) c),
    formula as (
        select c.*, h.held,
               liability_units((c.wanted).state, h.held, (c.wanted).unknown_units, (c.wanted).stated_outstanding)
                   as liability,
               greatest((c.before).updated_at, ledger_clock()) as at
        from change c
        cross join lateral (
            select held_units((c.wanted).state, (c.wanted).ceiling, (c.wanted).settled,
                              (c.wanted).in_flight + (c.wanted).unknown_units + (c.wanted).stated_outstanding)
                as held) h),
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
            version = (f.before).version + 1,
            attempt_number = (f.wanted).attempt_number,
            attempt_holder = (f.wanted).attempt_holder,
            attempt_token = (f.wanted).attempt_token,
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

    perform post(array_agg(row (k.n, p.account, p.id, k.event, k.actor,
                                (c.before).settled + (c.before).reserved + (c.before).liability
                                    - (k.before).settled - (k.before).reserved - (k.before).liability,
                                (k.before).reserved - (c.before).reserved,
                                (k.before).liability - (c.before).liability,
                                (k.before).settled - (c.before).settled,
                                0, 0, (k.before).account, (k.before).id, (k.before).version, c.reason)::posting
                           order by k.n, p.id),
                 (select coalesce(sum(cardinality((c.before).period_ids)), 0) from unnest(asked) c))
    from unnest(kept) k
    join unnest(asked) c on c.n = k.n
    join budget_period p on p.id = any ((k.before).period_ids) and p.account in ((k.before).account, '');
    return query select k.n, k.before from unnest(kept) k;
end $$;
comment on function keep(reservation_change[]) is
    'Writes reservations, their events and their postings for changes already decided under the reservations'' locks.';

-- A reservation as the program reads it: amounts as exact text. What an older
-- program does not know it passes over, so columns can be added. (PL/pgSQL keeps
-- its plan; a function in SQL that is not inlined is planned for every call.)
create function reservation_json(r reservation) returns jsonb
    language plpgsql stable parallel safe as $$
begin
    return jsonb_build_object(
        'account', r.account, 'id', r.id, 'request', r.request,
        'operation', r.operation, 'operation_revision', r.operation_revision,
        'provider', r.provider, 'enforcement', r.enforcement, 'unit', r.unit,
        'member', r.member, 'provider_key', r.provider_key, 'period_ids', r.period_ids,
        'estimate', trim_scale(r.estimate)::text, 'ceiling', trim_scale(r.ceiling)::text,
        'settled', trim_scale(r.settled)::text, 'in_flight', trim_scale(r.in_flight)::text,
        'unknown', trim_scale(r.unknown_units)::text,
        'stated_outstanding', trim_scale(r.stated_outstanding)::text,
        'reserved', trim_scale(r.reserved)::text, 'liability', trim_scale(r.liability)::text)
        || jsonb_build_object(
        'state', r.state, 'version', r.version,
        'attempt_number', r.attempt_number, 'attempt_holder', r.attempt_holder,
        'attempt_token', r.attempt_token, 'lease_expires_at', r.lease_expires_at,
        'reference', r.reference, 'labels', r.labels,
        'created_at', r.created_at, 'updated_at', r.updated_at, 'closed_at', r.closed_at);
end $$;
comment on function reservation_json(reservation) is 'A reservation as the program reads it, amounts as exact text.';

-- The budget periods of a reservation, as its answer shows them.
create function reservation_periods(r reservation) returns jsonb
    language plpgsql stable parallel safe as $$
begin
    return (select coalesce(jsonb_agg(jsonb_build_object(
               'budget', p.budget, 'pool', p.account = '',
               'period_starts_at', p.starts_at, 'period_ends_at', p.ends_at)
               order by p.account = '', p.budget, p.id), '[]')
    from budget_period p
    where p.id = any (r.period_ids) and p.account in (r.account, ''));
end $$;
comment on function reservation_periods(reservation) is
    'The budget periods that a reservation is charged to: names and bounds, which never change.';
