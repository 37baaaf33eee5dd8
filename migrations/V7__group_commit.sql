-- Requests of many keys are decided by one statement, which looks at once whether
-- the keys are still valid.

-- Not inlined, and volatile: it sees what was committed a moment ago, also in the
-- middle of a statement that has waited for a lock.
create function void_keys(keys uuid[]) returns setof uuid language plpgsql volatile as $$
begin
    return query
        select a.id
        from unnest(keys) as a (id)
        where a.id is not null
          and not exists (select
                          from api_key k
                          where k.id = a.id and k.revoked_at is null
                            and (k.expires_at is null or k.expires_at > ledger_clock()));
end $$;
comment on function void_keys(uuid[]) is 'Those of these API keys that are not valid at this instant: revoked, expired, or not there.';

-- The same, of keys of jobs.
create function taken_keys(items bigint[], accounts text[], keys text[]) returns setof bigint
    language plpgsql volatile as $$
begin
    return query
        select a.n
        from unnest(items, accounts, keys) as a (n, account, key)
        where exists (select
                      from reservation r
                      where r.account = a.account and r.idempotency_key = a.key);
end $$;
comment on function taken_keys(bigint[], text[], text[]) is
    'The items whose key has been taken by a reservation, at this instant.';

-- What stands against raising one ceiling, or that it fits.
create type weighed as (
    n         bigint,
    outcome   text,
    units     numeric,
    max_units numeric,
    observing boolean,
    charges   jsonb
);
comment on type weighed is 'What became of one wish for a higher ceiling, and the budgets that it saw.';

-- What stands against raising these ceilings, as things are now, and which of them
-- would fit. A refusal locks no period: what is seen when none is locked yet is a
-- valid state to refuse on.
create function look_at_extensions(asked extension[], out refused weighed[], out candidates extension[])
    language plpgsql as $$
begin
    select coalesce(array_agg(row (w.n, w.outcome, w.units, w.max_units, w.observing, w.charges)::weighed)
                        filter (where w.outcome <> 'fits'), '{}'),
           coalesce(array_agg(e order by e.n) filter (where w.outcome = 'fits'), '{}')
    into refused, candidates
    from weigh_extensions(asked) w
    join unnest(asked) e on e.n = w.n;
end $$;
comment on function look_at_extensions(extension[]) is
    'Which ceilings cannot be raised as things are now, and which of them would fit. Locks nothing.';

-- Decides whether ceilings may be raised: each if every enforcing budget of its
-- reservation has room for the difference, in the order given. The new ceiling is
-- above the current one, and the caller has found nothing wrong with the
-- reservation itself, which it has locked. Writes nothing.
--
-- What seemed to fit is weighed again under the locks of its periods, which are
-- taken in the order of their ids. Each, also of those that a look has refused
-- already, is told of its budgets as those before it in this statement left them.
create function decide_extensions(candidates extension[], refused weighed[])
    returns table (n bigint, outcome text, units numeric, max_units numeric, observing boolean, charges jsonb)
    language plpgsql as $$
#variable_conflict use_column
begin
    if candidates <> '{}' then
        perform lock_periods(array(select e.r from unnest(candidates) e));
    end if;
    return query
    with weighed as materialized (
        select * from weigh_extensions(candidates)),
    charge as materialized (
        select w.n, c.period_id, w.units, c.room
        from weighed w
        cross join lateral unnest(w.periods, w.rooms) as c (period_id, room)
        where w.outcome = 'fits'),
    admitted as materialized (
        select unnest(admit(array_agg(c.n order by c.n, c.period_id),
                            array_agg(c.period_id order by c.n, c.period_id),
                            array_agg(c.units order by c.n, c.period_id),
                            array_agg(c.room order by c.n, c.period_id))) as n
        from charge c
        union all
        select w.n from weighed w where w.outcome = 'fits' and w.periods = '{}'),
    verdict as materialized (
        select w.n,
               case
                   when w.outcome <> 'fits' then w.outcome
                   when w.n in (select n from admitted) then 'extended'
                   else 'budget_exhausted'
               end as outcome,
               w.units, w.max_units, w.observing, w.charges
        from weighed w
        union all
        select r.n, r.outcome, r.units, r.max_units, r.observing, r.charges
        from unnest(refused) r),
    taken as materialized (
        select c.n, c.period_id, c.units
        from charge c
        where c.n in (select n from admitted) and c.units > 0)
    select v.n, v.outcome, v.units, v.max_units, v.observing,
           case when exists (select from taken t where t.n < v.n) then (
               select jsonb_agg(c.charge || jsonb_build_object(
                                    'available', trim_scale((c.charge ->> 'available')::numeric - b.units)::text,
                                    'held', trim_scale((c.charge ->> 'held')::numeric + b.units)::text)
                                order by c.place)
               from jsonb_array_elements(v.charges) with ordinality as c (charge, place)
               cross join lateral (
                   select coalesce(sum(t.units), 0) as units
                   from taken t
                   where t.n < v.n and t.period_id = (c.charge ->> 'period_id')::uuid) b)
           else v.charges end
    from verdict v;
end $$;
comment on function decide_extensions(extension[], weighed[]) is
    'Whether ceilings may be raised, in the order given; decided under the locks of the reservations'' periods.';
drop function decide_extensions(extension[]);
