-- What grows with time lies in stretches of time, so that old months can be taken
-- out without touching the rest: the journal by the time of its entries, calls by
-- the id of their reservation and refusals by their own (ids rise with time).
--
-- Reservations and their history stay whole: one constraint keeps a job's key
-- unique for as long as its row is there.
--
-- The stretches of a table cover all of time. The first begins before everything,
-- the last ends after everything (…_later), so that no row is ever without a
-- place, whatever the clocks say. There is no default partition: with one, nothing
-- can be detached while the ledger is in use.

-- Who may make tables in this schema could make one that has the name of a month to
-- come. Postgres 15 allows that to nobody but the schema's owner; before, and where
-- it was brought along from before, to everybody. Where it is not ours to take away,
-- a table of somebody else's is still not taken for a month (attach_stretch()).
do $$ begin
    revoke create on schema public from public;
exception
    when insufficient_privilege then null;
end $$;

create function first_id_of(at timestamptz) returns uuid language sql immutable parallel safe
    return (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;
comment on function first_id_of(timestamptz) is 'The smallest UUIDv7 of this millisecond: where ids of a time begin.';

create function time_of_id(id uuid) returns timestamptz language sql immutable parallel safe
    return timestamptz 'epoch'
           + ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint * interval '1 millisecond';
comment on function time_of_id(uuid) is 'The millisecond that a UUIDv7 was made in.';

-- A bound as Postgres writes it, as a time, and back. Before and after everything
-- are -infinity and infinity.
create function bound_time(bound text) returns timestamptz language sql stable parallel safe as $$
    select case
               when bound = 'MINVALUE' then '-infinity'
               when bound = 'MAXVALUE' then 'infinity'
               when bound ~ '^''[0-9a-f]{8}-[0-9a-f]{4}-' then time_of_id(trim(both '''' from bound)::uuid)
               else trim(both '''' from bound)::timestamptz
           end
$$;
comment on function bound_time(text) is 'The time that a bound of a stretch stands for.';

create function bound_text(parent text, at timestamptz) returns text language sql stable parallel safe as $$
    select case
               when at = '-infinity' then 'minvalue'
               when at = 'infinity' then 'maxvalue'
               when parent = 'journal_entry' then quote_literal(at)
               else quote_literal(first_id_of(at))
           end
$$;
comment on function bound_text(text, timestamptz) is 'A time as the bound of a stretch of this table.';

create function stretches(parent text)
    returns table (name text, starts_at timestamptz, ends_at timestamptz, detaching boolean)
    language sql stable
    set search_path = public, pg_temp set timezone = 'UTC' set datestyle = 'ISO' as $$
    select c.relname::text, bound_time(b.bound[1]), bound_time(b.bound[2]), i.inhdetachpending
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    cross join lateral regexp_match(pg_get_expr(c.relpartbound, c.oid), '^FOR VALUES FROM \((.*)\) TO \((.*)\)$')
        as b (bound)
    where i.inhparent = parent::regclass
    order by 2
$$;
comment on function stretches(text) is
    'The stretches of time that a table lies in, with their bounds, and whether one is being detached.';

-- The time of the newest row in a table: a stretch, or what is to become one.
create function newest_time(parent text, stretch text) returns timestamptz language plpgsql stable
    set search_path = public, pg_temp as $$
declare
    newest timestamptz;
begin
    if parent = 'journal_entry' then
        execute format('select max(at) from %I', stretch) into newest;
    else
        execute format('select time_of_id(%1$I) from %2$I order by %1$I desc limit 1',
                       case parent when 'call' then 'reservation_id' else 'id' end, stretch)
        into newest;
    end if;
    return newest;
end $$;
comment on function newest_time(text, text) is 'The time of the newest row of this stretch; null if it is empty.';

create function rename_stretch(stretch text, becomes text) returns void language plpgsql
    set search_path = public, pg_temp as $$
declare
    named text;
begin
    execute format('alter table %I rename to %I', stretch, becomes);
    for named in select i.indexrelid::regclass::text from pg_index i where i.indrelid = becomes::regclass loop
        execute format('alter index %I rename to %I', named, becomes || substr(named, length(stretch) + 1));
    end loop;
end $$;
comment on function rename_stretch(text, text) is 'Gives a table another name, and its indexes the names that follow.';

-- What every stretch has for itself, since none of it comes from the table that it
-- is a part of: nobody has rights on it; a statement that names it meets the
-- trigger that refuses changes; and in the journal, whose number comes from the
-- locked row of its period, a number is used once.
create function guard_stretch(parent text, stretch text) returns void language plpgsql
    set search_path = public, pg_temp as $$
begin
    execute format('revoke all on %I from public, spend_ledger_service, spend_ledger_finance', stretch);
    execute format('comment on table %I is %L', stretch, format('A stretch of time of %s: read %1$s.', parent));
    if parent = 'journal_entry' then
        if not exists (select from pg_index i where i.indrelid = stretch::regclass and i.indisprimary) then
            execute format('alter table %I add primary key (account, period_id, entry_no)', stretch);
        end if;
        if not exists (select from pg_trigger t
                       where t.tgrelid = stretch::regclass and t.tgname = 'journal_entry_is_append_only') then
            execute format('create trigger journal_entry_is_append_only before update or delete or truncate on %I
                                for each statement execute function refuse_change()', stretch);
        end if;
    elsif parent = 'call' then
        execute format('alter table %I set (fillfactor = 80)', stretch);
    end if;
end $$;
comment on function guard_stretch(text, text) is 'Gives a stretch what it has for itself: no rights for anybody, and the guard of what is append-only.';

create function attach_stretch(parent text, stretch text, starts timestamptz, ends timestamptz) returns void
    language plpgsql
    set search_path = public, pg_temp set timezone = 'UTC' set datestyle = 'ISO' as $$
begin
    if to_regclass(format('%I', stretch)) is null then
        execute format('create table %I (like %I including defaults including constraints including comments)',
                       stretch, parent);
    elsif not exists (select from pg_class c
                      join pg_class p on p.oid = parent::regclass and p.relowner = c.relowner
                      where c.oid = to_regclass(format('%I', stretch)) and c.relkind = 'r'
                        and c.relnamespace = p.relnamespace and not c.relispartition) then
        -- Whoever owns it could change what is in it, or have code run by who reads it.
        raise exception '% is there, and is not the owner''s own table: it cannot become a stretch of %', stretch, parent
            using errcode = 'duplicate_table';
    end if;
    perform guard_stretch(parent, stretch);
    execute format('alter table %I attach partition %I for values from (%s) to (%s)', parent, stretch,
                   bound_text(parent, starts), bound_text(parent, ends));
end $$;
comment on function attach_stretch(text, text, timestamptz, timestamptz) is
    'Makes a table, or takes one that is there, as the stretch between these times.';

-- A table that has rows as a stretch that ends with the month of its newest row,
-- or with the present month if that is later. Answers where it ends.
create function attach_as_it_is(parent text, stretch text, starts timestamptz) returns timestamptz
    language plpgsql
    set search_path = public, pg_temp set timezone = 'UTC' set datestyle = 'ISO' as $$
declare
    month timestamptz := date_trunc('month', greatest(ledger_clock(), newest_time(parent, stretch)));
    named text := parent || '_through_' || to_char(month, 'FMYYYY_MM');
begin
    perform rename_stretch(stretch, named);
    perform attach_stretch(parent, named, starts, month + interval '1 month');
    return month + interval '1 month';
end $$;
comment on function attach_as_it_is(text, text, timestamptz) is
    'Takes a table that has rows as the stretch through the month of its newest row, or the present one.';

create function is_of_what_is_earlier(parent text, stretch text) returns boolean language sql immutable parallel safe
    return starts_with(stretch, parent || '_earlier');
comment on function is_of_what_is_earlier(text, text) is
    'Whether this stretch is one that stands for what has been taken out.';

-- After the oldest stretches have been taken out, the time that they had has a place
-- again: an empty stretch for each gap. Those that are there stay as they are, so
-- nobody who uses the table waits for this. What comes to be in them, by a clock that
-- has been set back, stays there.
create function cover_what_is_earlier(parent text) returns void language plpgsql
    set search_path = public, pg_temp as $$
declare
    gap record;
begin
    for gap in
        select s.before as starts_at, s.starts_at as ends_at
        from (select starts_at, lag(ends_at, 1, '-infinity') over (order by starts_at) as before
              from stretches(parent)) s
        where s.before < s.starts_at
    loop
        perform attach_stretch(
            parent,
            case
                when gap.starts_at = '-infinity' then parent || '_earlier'
                else parent || '_earlier_through_'
                     || to_char(gap.ends_at at time zone 'UTC' - interval '1 microsecond', 'FMYYYY_MM')
            end,
            gap.starts_at, gap.ends_at);
    end loop;
end $$;
comment on function cover_what_is_earlier(text) is
    'Gives the time of stretches that have been taken out a place, where it has none.';

-- Makes one of the empty stretches that stand for what has been taken out. For who
-- has the table to himself anyway.
create function join_what_is_earlier(parent text) returns void language plpgsql
    set search_path = public, pg_temp as $$
declare
    earlier text;
    used boolean;
begin
    if (select count(*) from stretches(parent) s where is_of_what_is_earlier(parent, s.name)) < 2 then
        return;
    end if;
    for earlier in select s.name from stretches(parent) s where is_of_what_is_earlier(parent, s.name) loop
        execute format('lock table %I in access exclusive mode', earlier);
        execute format('select exists (select from %I)', earlier) into used;
        if not used then
            execute format('drop table %I', earlier);
        end if;
    end loop;
    perform cover_what_is_earlier(parent);
end $$;
comment on function join_what_is_earlier(text) is
    'Makes one of the empty stretches that stand for what has been taken out of a table.';

-- Opens the months that are not there yet, up to three ahead, by splitting what
-- comes later. That takes a lock on the whole table for a moment: whoever cannot
-- have it at once gives up and says so. It is asked again once an hour, and until
-- then rows of later months have a place in …_later, which can still be split: it
-- becomes a stretch of its own, as long as nothing in it is beyond the months that
-- are to be opened. That is looked for before there is any lock, so that a row of a
-- far future does not keep everybody waiting once an hour, for nothing. One
-- transaction is about one table.
create function open_months(parent text, out opened text[], out obstacle text) language plpgsql security definer
    set search_path = public, pg_temp set timezone = 'UTC' set datestyle = 'ISO'
    set lock_timeout = '200ms' as $$
declare
    month timestamptz := date_trunc('month', ledger_clock());
    wanted timestamptz := month + interval '4 months';
    later text := parent || '_later';
    starts timestamptz;
    newest timestamptz;
begin
    if parent not in ('journal_entry', 'call', 'refusal') then
        raise exception '% does not lie in months', parent using errcode = 'invalid_parameter_value';
    end if;
    opened := '{}';
    select s.starts_at into starts from stretches(parent) s where s.name = later;
    if starts >= wanted then
        return;
    end if;
    newest := newest_time(parent, later);
    if newest >= wanted then
        obstacle := format('%s holds rows of %s', later, to_char(newest, 'YYYY-MM'));
        return;
    end if;
    execute format('lock table only %I, %I in access exclusive mode', parent, later);
    -- Somebody else may have done it while this waited.
    select s.starts_at into starts from stretches(parent) s where s.name = later;
    if starts >= wanted then
        return;
    end if;
    newest := newest_time(parent, later);
    if newest >= wanted then
        obstacle := format('%s holds rows of %s', later, to_char(newest, 'YYYY-MM'));
        return;
    end if;
    execute format('alter table %I detach partition %I', parent, later);
    if newest is not null then
        starts := attach_as_it_is(parent, later, starts);
    elsif starts < month then
        -- Time in which nothing was written needs no months of its own.
        perform attach_stretch(parent, parent || '_through_' || to_char(month - interval '1 month', 'FMYYYY_MM'),
                               starts, month);
        starts := month;
    end if;
    while starts < wanted loop
        perform attach_stretch(parent, parent || '_' || to_char(starts, 'FMYYYY_MM'), starts,
                               starts + interval '1 month');
        opened := opened || to_char(starts, 'YYYY-MM');
        starts := starts + interval '1 month';
    end loop;
    perform attach_stretch(parent, later, starts, 'infinity');
    perform join_what_is_earlier(parent);
exception
    when lock_not_available then
        opened := '{}';
        obstacle := format('%s is in use', parent);
end $$;
comment on function open_months(text) is
    'Opens the months of a table that are not there yet, up to three ahead, if it can do so at once.';

-- For the owner, when rows of a far future, by a clock that was years ahead, keep
-- open_months() from splitting …_later: splits it all the same, in months for as far
-- as these are opened, and in years from there to the newest row. It has the table to
-- itself while it copies what is in …_later. Answers how many stretches it made.
create function split_later(parent text, out made integer) language plpgsql
    set search_path = public, pg_temp set timezone = 'UTC' set datestyle = 'ISO' as $$
declare
    later text := parent || '_later';
    whole text := parent || '_being_split';
    wanted timestamptz := date_trunc('month', ledger_clock()) + interval '4 months';
    starts timestamptz;
    ends timestamptz;
    newest timestamptz;
begin
    made := 0;
    execute format('lock table only %I, %I in access exclusive mode', parent, later);
    newest := newest_time(parent, later);
    if newest > ledger_clock() + interval '50 years' then
        raise exception '% holds rows of %, which is too far ahead', later, to_char(newest, 'YYYY-MM')
            using errcode = 'datetime_field_overflow';
    elsif newest is null then
        return;
    end if;
    select s.starts_at into starts from stretches(parent) s where s.name = later;
    execute format('alter table %I detach partition %I', parent, later);
    perform rename_stretch(later, whole);
    while starts <= newest or starts < wanted loop
        ends := case
                    when starts < wanted then starts + interval '1 month'
                    else date_trunc('year', starts) + interval '1 year'
                end;
        perform attach_stretch(
            parent,
            case
                when starts < wanted then parent || '_' || to_char(starts, 'FMYYYY_MM')
                else parent || '_through_' || to_char(ends - interval '1 month', 'FMYYYY_MM')
            end,
            starts, ends);
        made := made + 1;
        starts := ends;
    end loop;
    perform attach_stretch(parent, later, starts, 'infinity');
    execute format('insert into %I select * from %I', parent, whole);
    execute format('drop table %I', whole);
end $$;
comment on function split_later(text) is
    'Splits what comes later of a table, although it holds rows of a far future: for the owner, who takes the table for himself meanwhile.';

-- Removes the stretches of refusals in which nothing is younger than so many days.
-- Answers how many stretches are gone; how many rows they had is not counted, which
-- would take longer than a statement may. Who may ask may also delete them one by one.
create function drop_refusals_older_than(days integer, out months integer) language plpgsql security definer
    set search_path = public, pg_temp set lock_timeout = '200ms' as $$
declare
    since timestamptz := ledger_clock() - make_interval(days => days);
    old text;
    younger boolean;
begin
    months := 0;
    for old in
        select s.name
        from stretches('refusal') s
        where s.ends_at <= since and not is_of_what_is_earlier('refusal', s.name)
    loop
        execute format('lock table only refusal, %I in access exclusive mode', old);
        -- The bounds are of the clock that makes ids.
        execute format('select exists (select from %I where at >= $1)', old) into younger using since;
        exit when younger;
        execute format('drop table %I', old);
        months := months + 1;
    end loop;
    if months > 0 then
        perform cover_what_is_earlier('refusal');
        perform join_what_is_earlier('refusal');
    end if;
exception
    when lock_not_available then
        months := 0;
end $$;
comment on function drop_refusals_older_than(integer) is
    'Drops the stretches of refusals in which all are older than so many days, if it can do so at once.';

-- The tables as they are become the first stretch of each: no row is copied. (They
-- are read once, to see that all rows are within its bounds.)

do $$ begin perform rename_stretch('journal_entry', 'journal_entry_existing'); end $$;
create table journal_entry (like journal_entry_existing including defaults including constraints including comments)
    partition by range (at);
comment on table journal_entry is
    'Every transfer of units from one bucket to another of the same budget period. Append-only: nothing here ever changes. Lies in months; old ones can be archived (journal_checkpoint says what they came to).';
create trigger journal_entry_is_append_only before update or delete or truncate on journal_entry
    for each statement execute function refuse_change();
revoke all on journal_entry from public;
grant select, insert on journal_entry to spend_ledger_service;
grant select on journal_entry to spend_ledger_finance;

-- They speak of the table as it was, and are made anew below.
drop function call_now(text, uuid, text);
drop function end_call(call, text, numeric, text, timestamptz);
drop function call_json(call);
do $$ begin perform rename_stretch('call', 'call_existing'); end $$;
create table call (like call_existing including defaults including constraints including comments,
                   constraint call_pkey primary key (account, reservation_id, key))
    partition by range (reservation_id);
comment on table call is
    'One paid provider request, admitted under a reservation before it was sent. Changed only under its reservation''s lock. Lies in months of reservations; old ones can be archived.';
revoke all on call from public;
grant select, insert on call to spend_ledger_service;
grant update (state, actual, provider_request_id, ended_at) on call to spend_ledger_service;
grant select on call to spend_ledger_finance;

do $$ begin perform rename_stretch('refusal', 'refusal_existing'); end $$;
create table refusal (like refusal_existing including defaults including constraints including comments,
                      constraint refusal_pkey primary key (id))
    partition by range (id);
comment on table refusal is
    'Every request that was refused, or would have been by a limit that only observes. Kept for a limited time.';
create index refusal_at on refusal (at);
revoke all on refusal from public;
grant select, insert, delete on refusal to spend_ledger_service;
grant select on refusal to spend_ledger_finance;

do $$
declare
    parent text;
    ends timestamptz;
begin
    foreach parent in array array['journal_entry', 'call', 'refusal'] loop
        ends := attach_as_it_is(parent, parent || '_existing', '-infinity');
        perform attach_stretch(parent, parent || '_later', ends, 'infinity');
        perform open_months(parent);
    end loop;
end $$;

-- As in V5, of the table that is called so now. One plan serves all months: which
-- one it is about is found when it runs. Left to choose, Postgres plans each call
-- anew, which takes longer than the rest and grows with the number of months.

create function call_now(of_account text, of_reservation uuid, of_key text) returns call language plpgsql
    set plan_cache_mode = force_generic_plan as $$
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

create function end_call(c call, becomes text, costs numeric, provider_name text, at timestamptz)
    returns call language plpgsql set plan_cache_mode = force_generic_plan as $$
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

create function call_json(c call) returns jsonb language plpgsql stable parallel safe as $$
begin
    return case when c.key is not null then jsonb_build_object(
        'call', c.key, 'id', c.id, 'attempt', c.attempt_number, 'state', c.state,
        'units', trim_scale(c.units)::text, 'actual', trim_scale(c.actual)::text,
        'provider_request_id', c.provider_request_id,
        'admitted_at', c.admitted_at, 'ended_at', c.ended_at) end;
end $$;
comment on function call_json(call) is 'A call as the program reads it, amounts as exact text; null if there is none.';

-- Of all this the service may ask for two things.
revoke execute on function open_months(text), drop_refusals_older_than(integer) from public;
grant execute on function open_months(text), drop_refusals_older_than(integer) to spend_ledger_service;
