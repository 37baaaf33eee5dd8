-- Who may do what. The roles cannot log in: grant them to the users that do
-- (grant spend_ledger_service to ...). They are shared by all databases of a
-- server, so another migration may just have made them.
do $$
declare
    wanted text;
begin
    foreach wanted in array array['spend_ledger_service', 'spend_ledger_finance'] loop
        if not exists (select from pg_roles where rolname = wanted) then
            begin
                execute format('create role %I nologin', wanted);
            exception
                when duplicate_object or unique_violation then null;
                when insufficient_privilege then
                    raise exception 'this user may not create the role %: as a superuser, create role spend_ledger_service nologin; create role spend_ledger_finance nologin; then migrate again', wanted;
            end;
        end if;
    end loop;
end $$;

revoke all on all tables in schema public from public;
grant usage on schema public to spend_ledger_service, spend_ledger_finance;

-- The service. No DELETE and no TRUNCATE on anything that is accounted for, no
-- UPDATE on what is append-only, and of a reservation or a period only what a
-- verb may change.
grant select on all tables in schema public to spend_ledger_service;
grant update (version) on policy_state to spend_ledger_service;
grant insert on policy_version, operation_revision, audit_entry to spend_ledger_service;
grant insert, update on provider, operation, plan, budget, account, pool to spend_ledger_service;
grant insert on api_key to spend_ledger_service;
grant update (revoked_at) on api_key to spend_ledger_service;
grant insert on budget_period, reservation, reservation_event, journal_entry to spend_ledger_service;
grant update (limit_units, carried, granted, available, reserved, liability, settled,
              entry_no, last_entry_at, closed_at) on budget_period to spend_ledger_service;
grant update (state, ceiling, settled, in_flight, unknown_units, stated_outstanding, reserved, liability,
              version, attempt_number, attempt_holder, attempt_token, attempt_settled, attempt_in_flight, attempt_stated, attempt_done,
              lease_expires_at,
              provider_request_id, updated_at, closed_at) on reservation to spend_ledger_service;
grant insert, delete on refusal to spend_ledger_service;

-- Finance reads everything but secrets.
grant select on policy_state, policy_version, provider, operation, operation_revision, plan, budget, account, pool,
    audit_entry, budget_period, reservation_event, journal_entry, refusal to spend_ledger_finance;
grant select (id, name, role, accounts, created_at, created_by, expires_at, revoked_at)
    on api_key to spend_ledger_finance;
grant select (account, id, idempotency_key, request, operation, operation_revision, provider, enforcement, unit,
              member, provider_key, period_ids, policy_version, estimate, reference, labels, created_by, created_at,
              state, ceiling, settled, in_flight, unknown_units, stated_outstanding, reserved, liability, version,
              attempt_number, attempt_holder, attempt_settled, attempt_in_flight, attempt_stated, attempt_done,
              lease_expires_at, provider_request_id,
              updated_at, closed_at) on reservation to spend_ledger_finance;
