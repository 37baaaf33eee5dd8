-- What stays of an archived month. Its rows are in a file by then; its budget
-- periods go on from a checkpoint.

create table archived_month (
    of_table  text not null,
    month     date not null,
    stretch   text not null,
    starts_at timestamptz,
    ends_at   timestamptz not null,
    row_count bigint not null,
    periods   bigint,
    file      text not null,
    sha256    bytea not null,
    actor     text not null,
    at        timestamptz not null,
    primary key (of_table, month),
    constraint archived_month_stretch_is_archived_once unique (stretch),
    constraint archived_month_of_a_known_table check (of_table in ('journal_entry', 'call')),
    constraint archived_month_begins_with_the_month check (extract(day from month) = 1),
    constraint archived_month_ends_after_it_starts check (ends_at > starts_at),
    constraint archived_month_counts_are_not_negative check (least(row_count, coalesce(periods, 0)) >= 0),
    constraint archived_month_of_the_journal_has_periods check ((of_table = 'journal_entry') = (periods is not null)),
    constraint archived_month_sha256_is_whole check (octet_length(sha256) = 32)
);
comment on table archived_month is
    'The months of the journal and of calls that have been written to files, oldest first. Append-only.';
comment on column archived_month.of_table is 'The table whose rows they were.';
comment on column archived_month.month is 'The month; of the first stretch of a table, the last month that it has.';
comment on column archived_month.stretch is 'The name of the table that held the rows, and of the file without .csv.';
comment on column archived_month.starts_at is 'The first instant; null if it has everything from the beginning.';
comment on column archived_month.ends_at is 'The first instant after it.';
comment on column archived_month.row_count is 'How many rows the file has.';
comment on column archived_month.periods is 'How many budget periods have entries in it, and so a checkpoint; null for calls.';
comment on column archived_month.file is 'The name of the file.';
comment on column archived_month.sha256 is 'The SHA-256 of the file.';
comment on column archived_month.actor is 'Who archived it.';
comment on column archived_month.at is 'When, by the database''s clock.';
create trigger archived_month_is_append_only before update or delete or truncate on archived_month
    for each statement execute function refuse_change();

create table journal_checkpoint (
    account     text not null,
    period_id   uuid not null,
    month       date not null,
    entry_no    bigint not null,
    at          timestamptz not null,
    available   numeric(28, 12) not null,
    reserved    numeric(28, 12) not null,
    liability   numeric(28, 12) not null,
    settled     numeric(28, 12) not null,
    granted     numeric(28, 12) not null,
    limit_units numeric(28, 12) not null,
    carried     numeric(28, 12) not null,
    head        bytea not null,
    primary key (account, period_id, month),
    constraint journal_checkpoint_follows_entries check (entry_no >= 1),
    constraint journal_checkpoint_balances_are_amounts check (
        'NaN' not in (available, reserved, liability, settled, granted, limit_units, carried)
        and least(reserved, liability, settled, limit_units, carried) >= 0),
    constraint journal_checkpoint_buckets_add_up_to_granted check (available + reserved + liability + settled = granted),
    constraint journal_checkpoint_granted_is_limit_less_carried check (granted = limit_units - carried),
    constraint journal_checkpoint_head_is_sha256 check (octet_length(head) = 32)
);
comment on table journal_checkpoint is
    'Where a budget period stood after the last of its entries in an archived month: the journal goes on from there. Append-only.';
comment on column journal_checkpoint.account is 'The account of the budget period; empty for a pool.';
comment on column journal_checkpoint.period_id is 'The budget period.';
comment on column journal_checkpoint.month is 'The archived month.';
comment on column journal_checkpoint.entry_no is 'The number of the period''s last entry in that month.';
comment on column journal_checkpoint.at is 'The time of that entry.';
comment on column journal_checkpoint.available is 'The period''s available balance after it.';
comment on column journal_checkpoint.reserved is 'The period''s reserved balance after it.';
comment on column journal_checkpoint.liability is 'The period''s liability balance after it.';
comment on column journal_checkpoint.settled is 'The period''s settled balance after it.';
comment on column journal_checkpoint.granted is 'What the four buckets add up to after it.';
comment on column journal_checkpoint.limit_units is 'The limit in force after it.';
comment on column journal_checkpoint.carried is 'What the period could not spend after it, because earlier ones still held it.';
comment on column journal_checkpoint.head is
    'The chain over all of the period''s entries so far: SHA-256 of the head before and the entry''s line in the file, beginning with 32 zero bytes.';
create trigger journal_checkpoint_is_append_only before update or delete or truncate on journal_checkpoint
    for each statement execute function refuse_change();

create table reservation_checkpoint (
    account        text not null,
    reservation_id uuid not null,
    period_id      uuid not null,
    month          date not null,
    settled        numeric(28, 12) not null,
    reserved       numeric(28, 12) not null,
    liability      numeric(28, 12) not null,
    primary key (account, reservation_id, period_id, month),
    constraint reservation_checkpoint_sums_are_numbers check ('NaN' not in (settled, reserved, liability))
);
comment on table reservation_checkpoint is
    'What the entries of an archived month came to for each reservation that had not ended by then: with the entries that came later they make what it has settled and holds. Append-only.';
comment on column reservation_checkpoint.account is 'The account of the reservation.';
comment on column reservation_checkpoint.reservation_id is 'The reservation.';
comment on column reservation_checkpoint.period_id is 'The budget period that the entries are of.';
comment on column reservation_checkpoint.month is 'The archived month.';
comment on column reservation_checkpoint.settled is 'What went into settled in that month, less what left it.';
comment on column reservation_checkpoint.reserved is 'What went into reserved in that month, less what left it.';
comment on column reservation_checkpoint.liability is 'What went into liability in that month, less what left it.';
create trigger reservation_checkpoint_is_append_only before update or delete or truncate on reservation_checkpoint
    for each statement execute function refuse_change();

-- Written by the owner of the schema, read by everybody.
revoke all on archived_month, journal_checkpoint, reservation_checkpoint from public;
grant select on archived_month, journal_checkpoint, reservation_checkpoint to spend_ledger_service, spend_ledger_finance;

-- Reports of usage that come after that are kept as late usage. Not inlined: it is
-- asked for only where a call is not found.
create function calls_are_archived(reservation uuid) returns boolean language plpgsql stable as $$
begin
    return exists (select
                   from archived_month m
                   where m.of_table = 'call' and time_of_id(reservation) < m.ends_at);
end $$;
comment on function calls_are_archived(uuid) is 'Whether the calls of the month of this reservation have been written to a file.';
