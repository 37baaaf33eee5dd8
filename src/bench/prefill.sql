-- Settled reservations of the hot account, as if the service had admitted and settled
-- each in full, one after the other: number $1 to $2. Modelled on a reservation of the
-- account that the service has settled, which says what the policy says.
--
-- One instant for all of them, and never before the last entry: entry times do not
-- run backwards. Ids are UUIDv7 of that instant and rise with the numbers.
with model as materialized (
    select r.* from reservation r where r.account = $3 and r.state = 'settled' order by r.id limit 1),
period as materialized (
    select p.* from budget_period p join model m on p.id = any (m.period_ids) and p.account in (m.account, '')),
instant as materialized (
    select greatest(ledger_clock(), max(p.last_entry_at)) as at from period p),
job as materialized (
    select n, i.at,
           (lpad(to_hex((extract(epoch from i.at) * 1000)::bigint), 12, '0')
            || '7' || lpad(to_hex((n >> 24) & 4095), 3, '0')
            || '8' || lpad(to_hex(n & 16777215), 6, '0') || substr(md5(n::text), 1, 9))::uuid as id
    from generate_series($1::bigint, $2::bigint) n
    cross join instant i),
reservations as (
    insert into reservation (account, id, idempotency_key, request, operation, operation_revision, provider,
                             enforcement, unit, member, provider_key, period_ids, policy_version, estimate, reference,
                             labels, created_by, created_at, state, ceiling, settled, reserved, version,
                             attempt_number, attempt_holder, attempt_token, attempt_settled, attempt_done,
                             lease_expires_at, updated_at, closed_at)
    select m.account, j.id, 'prefill-' || lpad(j.n::text, 12, '0'), m.request, m.operation, m.operation_revision,
           m.provider, m.enforcement, m.unit, m.member, m.provider_key, m.period_ids, m.policy_version, m.estimate,
           m.reference, m.labels, m.created_by, j.at, 'settled', m.estimate, m.estimate, 0, 2,
           1, m.attempt_holder, '1.' || substr(md5('token' || j.n), 1, 22), m.estimate, true,
           j.at + interval '60 s', j.at, j.at
    from job j
    cross join model m
    order by j.n),
events as (
    insert into reservation_event (account, reservation_id, version, event, at, actor, state, ceiling, settled,
                                   reserved, liability, attempt_number)
    select m.account, j.id, v.version, v.event, j.at, m.created_by, v.state, m.estimate,
           case when v.version = 2 then m.estimate else 0 end, case when v.version = 1 then m.estimate else 0 end, 0, 1
    from job j
    cross join model m
    cross join (values (1, 'reserve', 'active'), (2, 'final_settlement', 'settled')) as v (version, event, state)
    order by j.n, v.version),
entries as (
    insert into journal_entry (account, period_id, entry_no, at, event, actor, source, target, amount, available,
                               reserved, liability, settled, reservation_account, reservation_id, reservation_version)
    select p.account, p.id, p.entry_no + 2 * (j.n - $1) + v.version, j.at, v.event, m.created_by, v.source, v.target,
           m.estimate, p.available - m.estimate * (j.n - $1 + 1),
           p.reserved + case when v.version = 1 then m.estimate else 0 end, p.liability,
           p.settled + m.estimate * (j.n - $1 + v.version - 1), m.account, j.id, v.version
    from job j
    cross join model m
    cross join period p
    cross join (values (1, 'reserve', 'available', 'reserved'), (2, 'final_settlement', 'reserved', 'settled'))
        as v (version, event, source, target)
    order by p.account, p.id, j.n, v.version)
update budget_period b
set available = b.available - m.estimate * ($2 - $1 + 1),
    settled = b.settled + m.estimate * ($2 - $1 + 1),
    entry_no = b.entry_no + 2 * ($2 - $1 + 1),
    last_entry_at = i.at
from model m
cross join instant i
where b.id = any (m.period_ids) and b.account in (m.account, '')
