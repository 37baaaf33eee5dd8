-- What may be spent: the policy, its versions, who may ask, and what was said.

-- The one clock that decides anything: which period a reservation falls in,
-- whether a lease or a key has run out. It moves while a statement waits for a
-- lock, unlike now().
create function ledger_clock() returns timestamptz
    language sql volatile parallel safe
    return clock_timestamp();
comment on function ledger_clock() is
    'The database''s clock, read at this instant. The only clock that decides.';

create function refuse_change() returns trigger
    language plpgsql as $$
begin
    raise exception '% is append-only: % refused', tg_table_name, tg_op
        using errcode = 'restrict_violation',
              hint = 'Correct the books with a new entry, never by changing an old one.';
end $$;
comment on function refuse_change() is 'Refuses UPDATE, DELETE and TRUNCATE for every role.';

create table policy_state (
    only_row boolean primary key default true,
    version  bigint not null,
    constraint policy_state_has_one_row check (only_row),
    constraint policy_state_version_counts_up check (version >= 0)
);
comment on table policy_state is
    'The version of the policy in force. Applying a policy locks this row; opening a period shares it.';
comment on column policy_state.only_row is 'Always true: there is one row.';
comment on column policy_state.version is 'The version in force; 0 before the first policy.';
insert into policy_state (version) values (0);

-- Not inlined, and volatile: it sees what was committed a moment ago, also in the
-- middle of a statement that has waited for a lock.
create function policy_version_in_force() returns bigint language plpgsql volatile as $$
begin
    return (select version from policy_state);
end $$;
comment on function policy_version_in_force() is
    'The version of the policy in force at this instant, whatever the statement''s snapshot shows.';

create table policy_version (
    version    bigint primary key,
    applied_at timestamptz not null,
    actor      text not null,
    changes    jsonb not null,
    source     text not null,
    constraint policy_version_counts_from_one check (version > 0)
);
comment on table policy_version is 'Every policy that was ever in force, and what it changed. Append-only.';
comment on column policy_version.version is 'Rises by one with each applied policy.';
comment on column policy_version.applied_at is 'When it came into force, by the database''s clock.';
comment on column policy_version.actor is 'Who applied it: an API key, or the command line.';
comment on column policy_version.changes is 'What it added, changed and retired.';
comment on column policy_version.source is 'The policy file as it was given.';
create trigger policy_version_is_append_only before update or delete or truncate on policy_version
    for each statement execute function refuse_change();

create table provider (
    name        text primary key,
    unit        text not null,
    enforcement text not null,
    keys        text[] not null,
    retired_at  timestamptz,
    constraint provider_enforcement_is_known check (enforcement in ('calls', 'worker'))
);
comment on table provider is 'The paid services.';
comment on column provider.name is 'Its name in the policy file.';
comment on column provider.unit is 'What the provider bills in, and so what is counted.';
comment on column provider.enforcement is
    'Who can stop a worker from spending: calls (the ledger admits each paid request) or worker (only evidence can).';
comment on column provider.keys is 'Our keys at the provider, by name.';
comment on column provider.retired_at is 'When a policy left it out; null while it is in force.';

create table operation (
    name       text primary key,
    provider   text not null references provider (name),
    revision   integer not null,
    max_units  numeric(28, 12) not null,
    mode       text not null,
    retired_at timestamptz,
    constraint operation_max_units_bounds check (max_units > 0 and max_units <> 'NaN'),
    constraint operation_mode_is_known check (mode in ('enforce', 'observe')),
    constraint operation_revision_counts_from_one check (revision > 0)
);
comment on table operation is 'The kinds of work that spend at a provider.';
comment on column operation.name is 'Its name in the policy file.';
comment on column operation.provider is 'Where it spends.';
comment on column operation.revision is 'Which revision of its cost map new estimates are made by.';
comment on column operation.max_units is 'The most that one reservation may ask for, inclusive.';
comment on column operation.mode is 'enforce, or observe: its bounds are recorded and refuse nothing.';
comment on column operation.retired_at is 'When a policy left it out; null while it is in force.';

create table operation_revision (
    operation  text not null references operation (name) deferrable initially deferred,
    revision   integer not null,
    pricing    jsonb not null,
    defined_at timestamptz not null,
    primary key (operation, revision)
);
comment on table operation_revision is
    'Every cost map an operation ever had: actual quantities are priced by the one the estimate was made by. Append-only.';
comment on column operation_revision.operation is 'The operation.';
comment on column operation_revision.revision is 'Counts the operation''s cost maps from one.';
comment on column operation_revision.defined_at is 'When it came into force, by the database''s clock.';
comment on column operation_revision.pricing is 'Quantities with bounds and defaults, and the cost map; or explicit.';
create trigger operation_revision_is_append_only before update or delete or truncate on operation_revision
    for each statement execute function refuse_change();

create table plan (
    name       text primary key,
    unbounded  text[] not null,
    retired_at timestamptz
);
comment on table plan is 'The budgets that a class of accounts gets (their limits are in budget).';
comment on column plan.name is 'Its name in the policy file.';
comment on column plan.unbounded is 'Units in which an account of this plan may spend without a limit.';
comment on column plan.retired_at is 'When a policy left it out; null while it is in force.';

create table budget (
    plan        text not null references plan (name),
    name        text not null,
    unit        text not null,
    limit_units numeric(28, 12) not null,
    period      text not null,
    timezone    text not null,
    rollover    text not null,
    mode        text not null,
    per_member  boolean not null,
    provider    text references provider (name),
    operation   text references operation (name),
    retired_at  timestamptz,
    primary key (plan, name),
    constraint budget_limit_is_not_negative check (limit_units >= 0 and limit_units <> 'NaN'),
    constraint budget_period_is_known
        check (period in ('hour', 'day', 'week', 'month', 'quarter', 'year', 'total')),
    constraint budget_rollover_is_known check (rollover in ('original_period', 'carry_forward')),
    constraint budget_mode_is_known check (mode in ('enforce', 'observe'))
);
comment on table budget is 'The limits of each plan.';
comment on column budget.plan is 'The plan that it belongs to.';
comment on column budget.name is 'Its name in the plan; the same name stands for the same thing in every plan.';
comment on column budget.unit is 'What is bounded.';
comment on column budget.limit_units is 'How much one period admits. Zero admits nothing.';
comment on column budget.period is 'The calendar interval that the limit is for; total is the whole life of the budget.';
comment on column budget.timezone is 'The IANA zone whose local calendar bounds the periods.';
comment on column budget.rollover is
    'original_period: a reservation burdens only its own period; carry_forward: a new period opens with less.';
comment on column budget.mode is 'enforce, or observe: counted and journaled, never refuses.';
comment on column budget.per_member is 'One budget for each member instead of one for the whole account.';
comment on column budget.provider is 'Bounds only work at this provider, when given.';
comment on column budget.operation is 'Bounds only this kind of work, when given.';
comment on column budget.retired_at is 'When a policy left it out; null while it is in force.';

create table account (
    name       text primary key,
    plan       text not null references plan (name),
    limits     jsonb not null default '{}',
    retired_at timestamptz,
    constraint account_name_is_not_empty check (name <> '')
);
comment on table account is 'The customers or tenants whose spending is bounded.';
comment on column account.name is 'Its name in the policy file, and everywhere else.';
comment on column account.plan is 'The plan whose budgets it gets.';
comment on column account.limits is 'Its own limits for budgets of the plan: {budget: units}.';
comment on column account.retired_at is 'When a policy left it out; null while it is in force.';

create table pool (
    name         text primary key,
    unit         text not null,
    limit_units  numeric(28, 12) not null,
    period       text not null,
    timezone     text not null,
    rollover     text not null,
    mode         text not null,
    provider     text references provider (name),
    provider_key text,
    operation    text references operation (name),
    retired_at   timestamptz,
    constraint pool_limit_is_not_negative check (limit_units >= 0 and limit_units <> 'NaN'),
    constraint pool_period_is_known
        check (period in ('hour', 'day', 'week', 'month', 'quarter', 'year', 'total')),
    constraint pool_rollover_is_known check (rollover in ('original_period', 'carry_forward')),
    constraint pool_mode_is_known check (mode in ('enforce', 'observe'))
);
comment on table pool is 'The budgets that all accounts share.';
comment on column pool.name is 'Its name in the policy file.';
comment on column pool.unit is 'What is bounded.';
comment on column pool.period is 'The calendar interval that the limit is for; total is its whole life.';
comment on column pool.timezone is 'The IANA zone whose local calendar bounds the periods.';
comment on column pool.rollover is 'As in budget.';
comment on column pool.mode is 'As in budget.';
comment on column pool.limit_units is 'How much one period admits, for all accounts together.';
comment on column pool.provider is 'Bounds only work at this provider, when given.';
comment on column pool.provider_key is 'Bounds only work with this key of ours at the provider, when given.';
comment on column pool.operation is 'Bounds only this kind of work, when given.';
comment on column pool.retired_at is 'When a policy left it out; null while it is in force.';

create table api_key (
    id         uuid primary key,
    name       text,
    role       text not null,
    accounts   text[],
    key_hash   bytea not null,
    created_at timestamptz not null,
    created_by text not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    constraint api_key_hash_is_unique unique (key_hash),
    constraint api_key_hash_is_sha256 check (octet_length(key_hash) = 32),
    constraint api_key_role_is_known check (role in ('worker', 'operator', 'finance')),
    constraint api_key_only_workers_are_bound check (role = 'worker' or accounts is null),
    constraint api_key_bound_to_something check (accounts is null or cardinality(accounts) > 0)
);
comment on table api_key is 'Who may ask. Only a hash of each key is kept.';
comment on column api_key.id is 'Its id; actors are written as key: and this id.';
comment on column api_key.name is 'A person''s name for it.';
comment on column api_key.role is 'What it may do: worker, operator or finance.';
comment on column api_key.created_at is 'When it was made, by the database''s clock.';
comment on column api_key.created_by is 'Who made it.';
comment on column api_key.expires_at is 'From this instant on the key is refused; null if never.';
comment on column api_key.accounts is 'The accounts a worker''s key may act for; null is all of them.';
comment on column api_key.revoked_at is 'From this instant on the key is refused.';

-- A key that was revoked may have leaked: it never comes back.
create function refuse_unrevoking() returns trigger language plpgsql as $$
begin
    if old.revoked_at is not null and new.revoked_at is distinct from old.revoked_at then
        raise exception 'key % was revoked: that is final', old.id using errcode = 'restrict_violation';
    end if;
    return new;
end $$;
comment on function refuse_unrevoking() is 'Refuses to change the time at which a key was revoked.';
create trigger api_key_revocation_is_final before update on api_key
    for each row execute function refuse_unrevoking();

create table audit_entry (
    id      uuid primary key,
    at      timestamptz not null,
    actor   text not null,
    action  text not null,
    subject text not null,
    detail  jsonb not null
);
comment on table audit_entry is 'Who changed what outside the journal: policy, keys. Append-only.';
comment on column audit_entry.id is 'Its id; ids rise with time.';
comment on column audit_entry.at is 'When, by the database''s clock.';
comment on column audit_entry.actor is 'The API key that asked, or the command line.';
comment on column audit_entry.action is 'What was done.';
comment on column audit_entry.subject is 'What it was done to.';
comment on column audit_entry.detail is 'What changed.';
create trigger audit_entry_is_append_only before update or delete or truncate on audit_entry
    for each statement execute function refuse_change();

-- The history of this schema itself, which is there before it when a migrator
-- runs this, and not when the files are run by hand.
do $$
begin
    if to_regclass('refinery_schema_history') is not null then
        comment on table refinery_schema_history is 'The migrations that made this schema.';
        comment on column refinery_schema_history.version is 'The number of the migration.';
        comment on column refinery_schema_history.name is 'Its name.';
        comment on column refinery_schema_history.applied_on is 'When it was applied, by the clock of whoever migrated.';
        comment on column refinery_schema_history.checksum is 'What its text adds up to: a migration is never edited.';
    end if;
end $$;
