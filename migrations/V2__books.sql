-- The books: budget periods with their buckets, reservations, and the journal
-- that explains every balance.
--
-- In these tables account '' stands for "shared by all accounts" (the periods
-- of a pool) and member '' for "of the whole account". A name is never empty,
-- so nothing collides with them.

create table budget_period (
    account       text not null,
    id            uuid not null,
    budget        text not null,
    member        text not null,
    ordinal       bigint not null,
    unit          text not null,
    period        text not null,
    timezone      text not null,
    starts_at     timestamptz not null,
    ends_at       timestamptz,
    limit_units   numeric(28, 12) not null,
    carried       numeric(28, 12) not null,
    granted       numeric(28, 12) not null,
    available     numeric(28, 12) not null,
    reserved      numeric(28, 12) not null,
    liability     numeric(28, 12) not null,
    settled       numeric(28, 12) not null,
    entry_no      bigint not null,
    last_entry_at timestamptz not null,
    closed_at     timestamptz,
    primary key (account, id),
    constraint budget_period_follows_one_another unique (account, budget, member, ordinal),
    constraint budget_period_starts_once unique (account, budget, member, starts_at),
    constraint budget_period_ends_after_it_starts check (ends_at > starts_at),
    constraint budget_period_limit_is_not_negative check (limit_units >= 0 and limit_units <> 'NaN'),
    constraint budget_period_carried_is_not_negative check (carried >= 0 and carried <> 'NaN'),
    constraint budget_period_reserved_is_not_negative check (reserved >= 0 and reserved <> 'NaN'),
    constraint budget_period_liability_is_not_negative check (liability >= 0 and liability <> 'NaN'),
    constraint budget_period_settled_is_not_negative check (settled >= 0 and settled <> 'NaN'),
    constraint budget_period_available_is_a_number check (available <> 'NaN'),
    constraint budget_period_granted_is_limit_less_carried check (granted = limit_units - carried),
    constraint budget_period_buckets_add_up_to_granted
        check (available + reserved + liability + settled = granted),
    constraint budget_period_entries_count_from_zero check (entry_no >= 0)
) with (fillfactor = 50);
comment on table budget_period is
    'One concrete interval of a budget, and its balances. Every change of a balance is in journal_entry.';
comment on column budget_period.account is 'Whose budget it is; empty for a pool, which all accounts share.';
comment on column budget_period.id is 'Its id; journal_entry.period_id and reservation.period_ids name it.';
comment on column budget_period.budget is 'The budget''s name in the account''s plan, or the pool''s name.';
comment on column budget_period.member is 'Which member''s, for a budget per member; empty for the whole account.';
comment on column budget_period.ordinal is 'Counts the periods of its budget in the order in which they were opened.';
comment on column budget_period.unit is 'What the balances count.';
comment on column budget_period.period is 'The kind of interval it was opened as.';
comment on column budget_period.timezone is 'The IANA zone whose local calendar bounds it.';
comment on column budget_period.starts_at is 'The first instant of the period.';
comment on column budget_period.ends_at is 'The first instant after the period; null if it never ends.';
comment on column budget_period.limit_units is 'The limit in force.';
comment on column budget_period.carried is 'What earlier periods still held and this one may not spend (carry_forward).';
comment on column budget_period.granted is 'limit_units less carried: what the four buckets add up to.';
comment on column budget_period.available is
    'What may still be admitted. Negative only after an overrun, a lowered limit, an adjustment, a carry, or in observe mode.';
comment on column budget_period.reserved is 'Authorised and not yet settled.';
comment on column budget_period.liability is 'Charged although the usage is not known and the job is not running in good order.';
comment on column budget_period.settled is 'Actual usage.';
comment on column budget_period.entry_no is 'The number of its last journal entry.';
comment on column budget_period.last_entry_at is 'The time of its last journal entry (of its opening, if it has none).';
comment on column budget_period.closed_at is 'When finance closed it; null while it is open to extensions.';

-- What a reservation takes from its budgets beyond what is settled. The one
-- formula that every transfer follows from.
create function held_units(state text, ceiling numeric, settled numeric, outstanding numeric)
    returns numeric language sql immutable parallel safe
    return case
        when state in ('waiting', 'active', 'cancelling') then greatest(ceiling - settled, outstanding)
        when state = 'fenced' then outstanding
        else 0
    end;
comment on function held_units(text, numeric, numeric, numeric) is
    'reserved + liability of a reservation: max(ceiling - settled, outstanding) while it may spend, outstanding once it is fenced, else 0.';

-- How much of that is liability: all of it when the job is not running in good
-- order, else what has an unknown outcome or was stated as possibly spent.
create function liability_units(state text, held numeric, unknown_units numeric, stated numeric)
    returns numeric language sql immutable parallel safe
    return case
        when state in ('cancelling', 'fenced') then held
        when state in ('waiting', 'active') then unknown_units + stated
        else 0
    end;
comment on function liability_units(text, numeric, numeric, numeric) is
    'liability of a reservation: everything held once it is cancelled or fenced, else what is unknown or stated as possibly spent.';

-- No foreign keys here: each would lock one shared row of the policy for every
-- admission. The names come from the policy in force, whose rows are never
-- deleted (the service has no right to).
create table reservation (
    account            text not null,
    id                 uuid not null,
    idempotency_key    text not null,
    request            jsonb not null,
    operation          text not null,
    operation_revision integer not null,
    provider           text not null,
    enforcement        text not null,
    unit               text not null,
    member             text,
    provider_key       text,
    period_ids         uuid[] not null,
    policy_version     bigint not null,
    estimate           numeric(28, 12) not null,
    reference          text,
    labels             jsonb not null,
    created_by         text not null,
    created_at         timestamptz not null,
    state              text not null,
    ceiling            numeric(28, 12) not null,
    settled            numeric(28, 12) not null default 0,
    in_flight          numeric(28, 12) not null default 0,
    unknown_units      numeric(28, 12) not null default 0,
    stated_outstanding numeric(28, 12) not null default 0,
    reserved           numeric(28, 12) not null,
    liability          numeric(28, 12) not null default 0,
    version            bigint not null default 1,
    attempt_number     integer,
    attempt_holder     text,
    attempt_token      text,
    attempt_settled    numeric(28, 12) not null default 0,
    attempt_in_flight  numeric(28, 12) not null default 0,
    attempt_stated     numeric(28, 12) not null default 0,
    attempt_done       boolean not null default false,
    lease_expires_at   timestamptz,
    provider_request_id text,
    updated_at         timestamptz not null,
    closed_at          timestamptz,
    primary key (account, id),
    constraint reservation_key unique (account, idempotency_key),
    constraint reservation_state_is_known
        check (state in ('waiting', 'active', 'cancelling', 'fenced', 'settled', 'expired', 'cancelled')),
    constraint reservation_enforcement_is_known check (enforcement in ('calls', 'worker')),
    constraint reservation_amounts_are_not_negative check (
        least(estimate, ceiling, settled, in_flight, unknown_units, stated_outstanding, attempt_settled,
              attempt_in_flight, attempt_stated) >= 0),
    constraint reservation_amounts_are_numbers check (
        'NaN' not in (estimate, ceiling, settled, in_flight, unknown_units, stated_outstanding, attempt_settled,
                      attempt_in_flight, attempt_stated, reserved, liability)),
    constraint reservation_reserved_is_not_negative check (reserved >= 0),
    constraint reservation_liability_is_not_negative check (liability >= 0),
    constraint reservation_holds_by_the_formula check (
        reserved + liability
            = held_units(state, ceiling, settled, in_flight + unknown_units + stated_outstanding)),
    constraint reservation_liability_by_the_formula check (
        liability = liability_units(state, reserved + liability, unknown_units, stated_outstanding)),
    constraint reservation_closed_has_nothing_outstanding check (
        state in ('waiting', 'active', 'cancelling', 'fenced')
        or in_flight + unknown_units + stated_outstanding = 0),
    constraint reservation_never_started_has_spent_nothing check (
        state not in ('waiting', 'expired', 'cancelled')
        or (settled = 0 and in_flight + unknown_units + stated_outstanding = 0 and attempt_number is null)),
    constraint reservation_started_has_an_attempt check (
        state in ('waiting', 'expired', 'cancelled') or attempt_number is not null),
    constraint reservation_attempt_is_whole check (
        (attempt_number is null) = (attempt_holder is null)
        and (attempt_number is null) = (attempt_token is null)
        and (attempt_number is null) = (lease_expires_at is null)
        and coalesce(attempt_number, 1) >= 1),
    constraint reservation_attempt_settled_is_part_of_settled check (attempt_settled <= settled),
    constraint reservation_attempt_in_flight_is_part_of_in_flight check (attempt_in_flight <= in_flight),
    constraint reservation_attempt_stated_is_part_of_stated check (attempt_stated <= stated_outstanding),
    constraint reservation_closed_when_it_ended check (
        (closed_at is not null) = (state in ('settled', 'expired', 'cancelled'))),
    constraint reservation_version_counts_from_one check (version >= 1)
) with (fillfactor = 80);
comment on table reservation is 'The authorised estimate for one job, and what became of it.';
comment on column reservation.account is 'Whose spending it is.';
comment on column reservation.id is 'Its id, made when it was asked for; ids rise with time.';
comment on column reservation.idempotency_key is 'The job''s identity within its account.';
comment on column reservation.request is 'The request as it was sent; a repeat is compared with it.';
comment on column reservation.operation is 'The kind of work.';
comment on column reservation.operation_revision is 'The revision of the cost map that the estimate was made by.';
comment on column reservation.provider is 'Where the work spends.';
comment on column reservation.enforcement is 'Who can stop its worker, as it was when it was admitted.';
comment on column reservation.unit is 'What its amounts count.';
comment on column reservation.member is 'The member it was made for, if it was named.';
comment on column reservation.provider_key is 'Our key at the provider that it uses, if it was named.';
comment on column reservation.reference is 'The client''s own name for the job.';
comment on column reservation.labels is 'The client''s own labels.';
comment on column reservation.period_ids is
    'The budget periods it was admitted in and stays charged to, each with the same amounts.';
comment on column reservation.policy_version is 'The policy that it was admitted under.';
comment on column reservation.estimate is 'The units it was admitted with.';
comment on column reservation.state is
    'waiting, active, cancelling (cancelled, all still charged), fenced (cannot spend more), settled, expired and cancelled (never started).';
comment on column reservation.ceiling is 'The most that the job may spend before it asks for more.';
comment on column reservation.settled is 'Its actual usage so far.';
comment on column reservation.in_flight is 'Admitted calls that have not ended.';
comment on column reservation.unknown_units is 'Calls whose outcome is not known.';
comment on column reservation.stated_outstanding is 'What an earlier or stopped attempt may have spent.';
comment on column reservation.reserved is 'What it holds in the reserved bucket of each of its periods.';
comment on column reservation.liability is 'What it holds in the liability bucket of each of its periods.';
comment on column reservation.version is 'Rises by one with every change, lease renewals apart.';
comment on column reservation.attempt_number is 'The current attempt, the fencing token; null if none was ever issued.';
comment on column reservation.attempt_holder is 'The process that owns the current attempt.';
comment on column reservation.attempt_settled is 'What the current attempt has reported, cumulative.';
comment on column reservation.attempt_in_flight is 'Calls of the current attempt that have not ended.';
comment on column reservation.attempt_stated is 'What the current attempt may have spent, as stated when it was fenced.';
comment on column reservation.attempt_done is 'Whether the current attempt has settled for good.';
comment on column reservation.lease_expires_at is 'When the holder is overdue. Nothing else follows from it.';
comment on column reservation.provider_request_id is 'The provider''s own name for the settled work, if it was given.';
comment on column reservation.created_by is 'The API key that asked.';
comment on column reservation.created_at is 'When it was admitted, by the database''s clock.';
comment on column reservation.updated_at is 'When it last changed.';
comment on column reservation.closed_at is 'When it ended; null while it is open.';

-- A key that may act for several accounts finds the account by the id; lists
-- over all accounts walk it, newest first (ids are UUIDv7).
create unique index reservation_id on reservation (id);
-- What is open: overdue lists, and the sums that a period's balances must equal.
create index reservation_open on reservation (account, id)
    where state in ('waiting', 'active', 'cancelling', 'fenced');
create index reservation_reference on reservation (account, reference, id) where reference is not null;

create table reservation_event (
    account        text not null,
    reservation_id uuid not null,
    version        bigint not null,
    event          text not null,
    at             timestamptz not null,
    actor          text not null,
    state          text not null,
    ceiling        numeric(28, 12) not null,
    settled        numeric(28, 12) not null,
    reserved       numeric(28, 12) not null,
    liability      numeric(28, 12) not null,
    attempt_number integer,
    detail         jsonb not null default '{}',
    primary key (account, reservation_id, version),
    constraint reservation_event_amounts_are_amounts check (
        'NaN' not in (ceiling, settled, reserved, liability)
        and least(ceiling, settled, reserved, liability) >= 0),
    constraint reservation_event_counts_from_one check (version >= 1)
);
comment on table reservation_event is
    'The history of every reservation: one row for each version, without gaps. Append-only.';
comment on column reservation_event.account is 'The account of the reservation.';
comment on column reservation_event.reservation_id is 'The reservation.';
comment on column reservation_event.attempt_number is 'The attempt that was current after it.';
comment on column reservation_event.version is 'The reservation''s version that this change made.';
comment on column reservation_event.event is 'What happened.';
comment on column reservation_event.at is 'When, by the database''s clock.';
comment on column reservation_event.actor is 'The API key that asked.';
comment on column reservation_event.state is 'The state after it.';
comment on column reservation_event.ceiling is 'The ceiling after it.';
comment on column reservation_event.settled is 'The actual usage after it.';
comment on column reservation_event.reserved is 'Reserved in each of its periods after it.';
comment on column reservation_event.liability is 'In liability in each of its periods after it.';
comment on column reservation_event.detail is 'What else was said with it.';
create trigger reservation_event_is_append_only before update or delete or truncate on reservation_event
    for each statement execute function refuse_change();

create table journal_entry (
    account             text not null,
    period_id           uuid not null,
    entry_no            bigint not null,
    at                  timestamptz not null,
    event               text not null,
    actor               text not null,
    source              text not null,
    target              text not null,
    amount              numeric(28, 12) not null,
    available           numeric(28, 12) not null,
    reserved            numeric(28, 12) not null,
    liability           numeric(28, 12) not null,
    settled             numeric(28, 12) not null,
    reservation_account text,
    reservation_id      uuid,
    reservation_version bigint,
    reason              text,
    primary key (account, period_id, entry_no),
    constraint journal_entry_amount_is_positive check (amount > 0 and amount <> 'NaN'),
    constraint journal_entry_balances_are_amounts check (
        'NaN' not in (available, reserved, liability, settled) and least(reserved, liability, settled) >= 0),
    constraint journal_entry_moves_between_buckets check (
        source <> target
        and source in ('granted', 'available', 'reserved', 'liability', 'settled')
        and target in ('granted', 'available', 'reserved', 'liability', 'settled')
        and ('granted' not in (source, target) or 'available' in (source, target))),
    constraint journal_entry_counts_from_one check (entry_no >= 1),
    constraint journal_entry_names_a_whole_reservation check (
        (reservation_id is null) = (reservation_account is null)
        and (reservation_id is null) = (reservation_version is null))
);
comment on table journal_entry is
    'Every transfer of units from one bucket to another of the same budget period. Append-only: nothing here ever changes.';
comment on column journal_entry.account is 'The account of the budget period; empty for a pool.';
comment on column journal_entry.period_id is 'The budget period.';
comment on column journal_entry.entry_no is 'The period''s own entry number, without gaps.';
comment on column journal_entry.at is 'When, by the database''s clock, never before the entry before it.';
comment on column journal_entry.event is 'What caused it.';
comment on column journal_entry.actor is 'Who caused it: an API key, or the command line.';
comment on column journal_entry.source is 'The bucket it was taken from.';
comment on column journal_entry.target is 'The bucket it was put into.';
comment on column journal_entry.amount is 'How much, always above zero.';
comment on column journal_entry.available is 'The period''s available balance after it.';
comment on column journal_entry.reserved is 'The period''s reserved balance after it.';
comment on column journal_entry.liability is 'The period''s liability balance after it.';
comment on column journal_entry.settled is 'The period''s settled balance after it.';
comment on column journal_entry.reservation_account is 'The account of the reservation that it belongs to, if any.';
comment on column journal_entry.reservation_id is 'The reservation that it belongs to, if any.';
comment on column journal_entry.reservation_version is 'The version of the reservation that it came with.';
comment on column journal_entry.reason is 'Why, where a person had to say.';
create trigger journal_entry_is_append_only before update or delete or truncate on journal_entry
    for each statement execute function refuse_change();

create table refusal (
    id        uuid primary key,
    at        timestamptz not null,
    account   text,
    operation text,
    code      text not null,
    observed  boolean not null,
    units     numeric(28, 12),
    detail    jsonb not null,
    constraint refusal_units_are_an_amount check (units <> 'NaN' and units >= 0)
);
comment on table refusal is
    'Every request that was refused, or would have been by a limit that only observes. Kept for a limited time.';
comment on column refusal.id is 'Its id.';
comment on column refusal.at is 'When, by the database''s clock.';
comment on column refusal.account is 'The account it was for, if it was known.';
comment on column refusal.operation is 'The operation it named.';
comment on column refusal.code is 'The stable reason.';
comment on column refusal.observed is 'true: only observed, the request was admitted.';
comment on column refusal.units is 'How much was asked for, if it was known.';
comment on column refusal.detail is 'What refused, and by how much.';
create index refusal_at on refusal (at);
