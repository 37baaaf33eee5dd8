//! Copies of all that one account has, under the names of others: a situation that
//! took many requests to reach is there as often as a test needs it, and every copy
//! goes on by itself.

use serde_json::Value;
use sqlx::Row as _;
use uuid::Uuid;

use super::server::TestDatabase;

/// `$1` is the account, `$2` are the new ones. Ids of copies are made of the old
/// ones and the new account.
const COPY: [&str; 7] = [
    "insert into account
     select c.*
     from account a
     cross join unnest($2::text[]) t
     cross join jsonb_populate_record(a, jsonb_build_object('name', t)) c
     where a.name = $1",
    "insert into budget_period
     select c.*
     from budget_period p
     cross join unnest($2::text[]) t
     cross join jsonb_populate_record(p, jsonb_build_object('account', t, 'id', md5(t || p.id)::uuid)) c
     where p.account = $1",
    "insert into reservation
     select c.*
     from reservation r
     cross join unnest($2::text[]) t
     cross join jsonb_populate_record(r, jsonb_build_object(
         'account', t, 'id', md5(t || r.id)::uuid,
         'period_ids', (select jsonb_agg(md5(t || id)::uuid) from unnest(r.period_ids) id))) c
     where r.account = $1",
    "insert into reservation_event
     select c.*
     from reservation_event e
     cross join unnest($2::text[]) t
     cross join jsonb_populate_record(e, jsonb_build_object(
         'account', t, 'reservation_id', md5(t || e.reservation_id)::uuid)) c
     where e.account = $1",
    "insert into journal_entry
     select c.*
     from journal_entry e
     cross join unnest($2::text[]) t
     cross join jsonb_populate_record(e, jsonb_build_object(
         'account', t, 'period_id', md5(t || e.period_id)::uuid,
         'reservation_account', case when e.reservation_id is not null then t end,
         'reservation_id', md5(t || e.reservation_id)::uuid)) c
     where e.account = $1",
    "insert into call
     select c.*
     from call k
     cross join unnest($2::text[]) t
     cross join jsonb_populate_record(k, jsonb_build_object(
         'account', t, 'reservation_id', md5(t || k.reservation_id)::uuid, 'id', md5(t || k.id)::uuid)) c
     where k.account = $1",
    "insert into late_usage
     select c.*
     from late_usage u
     cross join unnest($2::text[]) t
     cross join jsonb_populate_record(u, jsonb_build_object(
         'account', t, 'reservation_id', md5(t || u.reservation_id)::uuid, 'id', md5(t || u.id)::uuid)) c
     where u.account = $1",
];

/// Gives each of these accounts, which do not exist yet, what this one has.
pub async fn copy_account(database: &TestDatabase, from: &str, to: &[String]) {
    let mut owner = database.connect().await;
    for statement in COPY {
        sqlx::query(statement).bind(from).bind(to).execute(&mut owner).await.unwrap();
    }
}

/// The ids of the reservations with this key, by account as in `accounts`.
pub async fn reservations_of(database: &TestDatabase, key: &str, accounts: &[String]) -> Vec<Uuid> {
    let ids = sqlx::query_scalar(
        "select r.id
         from unnest($2::text[]) with ordinality as t (account, n)
         join reservation r on r.account = t.account and r.idempotency_key = $1
         order by t.n",
    );
    let ids: Vec<Uuid> = ids.bind(key).bind(accounts).fetch_all(&mut database.connect().await).await.unwrap();
    assert_eq!(ids.len(), accounts.len());
    ids
}

/// All that is written down of each of these accounts, with its periods, every
/// column of every row.
pub async fn all_of(database: &TestDatabase, accounts: &[String]) -> Vec<Value> {
    let rows = sqlx::query(
        "select jsonb_build_object(
             'periods', (select jsonb_agg(to_jsonb(p) order by p.budget, p.ordinal)
                         from budget_period p where p.account = t.account),
             'journal', (select jsonb_agg(to_jsonb(e) order by p.budget, p.ordinal, e.entry_no)
                         from budget_period p
                         join journal_entry e on e.account = p.account and e.period_id = p.id
                         where p.account = t.account),
             'reservations', (select jsonb_agg(to_jsonb(r) order by r.idempotency_key)
                              from reservation r where r.account = t.account),
             'events', (select jsonb_agg(to_jsonb(e) order by r.idempotency_key, e.version)
                        from reservation r
                        join reservation_event e on e.account = r.account and e.reservation_id = r.id
                        where r.account = t.account),
             'calls', (select jsonb_agg(to_jsonb(c) order by c.key) from call c where c.account = t.account),
             'late_usage', (select jsonb_agg(to_jsonb(u) order by u.attempt_number, u.call_key, u.units)
                            from late_usage u where u.account = t.account),
             'audit', (select jsonb_agg(to_jsonb(a) order by a.action, a.detail)
                       from audit_entry a
                       where a.detail ->> 'account' = t.account))
         from unnest($1::text[]) with ordinality as t (account, n)
         order by t.n",
    );
    let rows = rows.bind(accounts).fetch_all(&mut database.connect().await).await.unwrap();
    rows.into_iter().map(|row| row.get(0)).collect()
}
