-- Whether a ceiling may be raised: by an extension, or by a call that asks for it.

-- One ceiling to be raised, of a locked and active reservation.
create type extension as (
    n       bigint,
    r       reservation,
    ceiling numeric
);
comment on type extension is 'One ceiling to be raised: the reservation as it was locked, and the new ceiling.';

-- What stands against raising each ceiling, or that it fits: each for itself, by the
-- policy in force and the balances as they are now. Locks nothing, writes nothing.
-- A reservation is charged to its own periods, also when they have ended; what has
-- been retired takes nothing new.
create function weigh_extensions(asked extension[])
    returns table (n bigint, outcome text, units numeric, max_units numeric, observing boolean, charges jsonb,
                   periods uuid[], rooms numeric[])
    language plpgsql as $$
#variable_conflict use_column
begin
    return query
    -- The budgets of each reservation as the policy in force has them.
    with charge as materialized (
        select e.n, p.account as owner, p.id as period_id, p.budget, p.member, p.limit_units, p.available,
               p.reserved + p.liability as held, p.carried, p.ends_at, p.closed_at,
               coalesce(b.mode, o.mode, 'enforce') as mode,
               room_of(coalesce(b.mode, o.mode, 'enforce') = 'enforce', p.available, p.reserved) as room,
               -- It is the account's still, and would be charged for the same work today.
               coalesce(b.retired_at is null and b.unit = (e.r).unit
                            and coalesce(b.provider, (e.r).provider) = (e.r).provider
                            and coalesce(b.operation, (e.r).operation) = (e.r).operation,
                        o.retired_at is null and o.unit = (e.r).unit
                            and coalesce(o.provider, (e.r).provider) = (e.r).provider
                            and coalesce(o.provider_key, (e.r).provider_key) is not distinct from (e.r).provider_key
                            and coalesce(o.operation, (e.r).operation) = (e.r).operation,
                        false) as in_force
        from unnest(asked) e
        join budget_period p on p.id = any ((e.r).period_ids) and p.account in ((e.r).account, '')
        left join account a on p.account <> '' and a.name = p.account
        left join budget b on b.plan = a.plan and b.name = p.budget
        left join pool o on p.account = '' and o.name = p.budget),
    wanted as materialized (
        select e.n, e.r, e.ceiling,
               held_units('active', e.ceiling, (e.r).settled, outstanding_units(e.r))
                   - (e.r).reserved - (e.r).liability as units
        from unnest(asked) e)
    select w.n,
           case
               when o.retired_at is not null or v.unit <> (w.r).unit then 'unknown_operation'
               when a.retired_at is not null then 'unknown_account'
               when exists (select from charge c where c.n = w.n and not c.in_force) then 'no_budget'
               when not exists (select from charge c where c.n = w.n and c.mode = 'enforce')
                    and not exists (select
                                    from plan p
                                    where p.name = a.plan and p.retired_at is null
                                      and (w.r).unit = any (p.unbounded)) then 'no_budget'
               when exists (select from charge c where c.n = w.n and c.closed_at is not null) then 'period_closed'
               when o.mode = 'enforce' and w.ceiling > o.max_units then 'too_expensive'
               when exists (select
                            from charge c
                            where c.n = w.n and c.mode = 'enforce' and c.limit_units > 0
                              and w.ceiling > c.limit_units) then 'over_a_whole_period'
               -- What takes nothing needs no room, also where none is left after an overrun.
               when w.units = 0 then 'fits'
               when exists (select from charge c where c.n = w.n and c.mode = 'enforce' and w.units > c.room)
                   then 'budget_exhausted'
               when exists (select from charge c where c.n = w.n and w.units > c.room) then 'out_of_range'
               else 'fits'
           end,
           w.units, o.max_units, o.mode = 'observe',
           (select coalesce(jsonb_agg(jsonb_build_object(
                       'pool', c.owner = '', 'budget', c.budget, 'member', c.member, 'enforcing', c.mode = 'enforce',
                       'period_id', c.period_id, 'ends_at', c.ends_at,
                       'limit', trim_scale(c.limit_units)::text, 'available', trim_scale(c.available)::text,
                       'held', trim_scale(c.held)::text, 'carried', trim_scale(c.carried)::text)
                       order by c.owner = '', c.budget, c.member), '[]')
            from charge c
            where c.n = w.n),
           array(select c.period_id from charge c where c.n = w.n order by c.period_id),
           array(select c.room from charge c where c.n = w.n order by c.period_id)
    from wanted w
    join operation o on o.name = (w.r).operation
    join provider v on v.name = o.provider
    join account a on a.name = (w.r).account;
end $$;
comment on function weigh_extensions(extension[]) is
    'What stands against raising each ceiling, each for itself, as things are now; or that it fits.';

-- Decides whether ceilings may be raised: each if every enforcing budget of its
-- reservation has room for the difference, in the order given. The new ceiling is
-- above the current one, and the caller has found nothing wrong with the
-- reservation itself. Writes nothing.
--
-- A refusal takes no lock: what is seen when nothing is locked yet is a valid state
-- to refuse on. What fits is weighed again under the locks of its periods, which are
-- taken in the order of their ids.
create function decide_extensions(asked extension[])
    returns table (n bigint, outcome text, units numeric, max_units numeric, observing boolean, charges jsonb)
    language plpgsql as $$
#variable_conflict use_column
declare
    seen record;
    candidates extension[] := '{}';
begin
    for seen in select w.* from weigh_extensions(asked) w loop
        if seen.outcome = 'fits' then
            candidates := candidates || array(select e from unnest(asked) e where e.n = seen.n);
        else
            n := seen.n;
            outcome := seen.outcome;
            units := seen.units;
            max_units := seen.max_units;
            observing := seen.observing;
            charges := seen.charges;
            return next;
        end if;
    end loop;
    if candidates = '{}' then
        return;
    end if;
    perform lock_periods(array(select e.r from unnest(candidates) e));
    return query
    with weighed as materialized (
        select * from weigh_extensions(candidates)),
    charge as (
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
        select w.n from weighed w where w.outcome = 'fits' and w.periods = '{}')
    select w.n,
           case
               when w.outcome <> 'fits' then w.outcome
               when w.n in (select n from admitted) then 'extended'
               else 'budget_exhausted'
           end,
           w.units, w.max_units, w.observing, w.charges
    from weighed w;
end $$;
comment on function decide_extensions(extension[]) is
    'Whether ceilings may be raised, in the order given; decided under the locks of the reservations'' periods where it fits.';
